"""A process stalls past its lease, another one takes over, and then the first one goes on."""

from __future__ import annotations

import time

import pytest
import sqlalchemy as sa

from idempotent import Outcome
from idempotent.claims import KeyStatus
from tests.guarantees.crash.scene import deliver, deliver_until_settled, until


@pytest.mark.parametrize(
    ("step", "after_takeover_ends"), [("complete", True), ("complete", False), ("release", False)]
)
def test_what_comes_too_late_changes_nothing_of_the_new_owners(leased, step, after_takeover_ends):
    late = leased.start(f"pause:before_{step}", fails=step == "release")
    late.wait_until_paused()
    stale = leased.key()
    seen = []

    def wake_up() -> None:
        before = leased.key()
        late.go_on()
        settled = late.wait()
        # The new owner renews meanwhile, so the lease and the last change may have moved.
        after = leased.key()
        seen.append((before.status, before.fence, before.attempts, before.result))
        seen.append((after.status, after.fence, after.attempts, after.result))
        seen.append(settled)

    consumer = leased.consumer(during=(lambda: None) if after_takeover_ends else wake_up)
    assert deliver_until_settled(consumer).outcome is Outcome.PROCESSED
    if after_takeover_ends:
        done = leased.key()
        wake_up()
        assert leased.key() == done, "to the last field"
    before, after, (answer, counts) = seen
    assert before == after
    assert before[0] is (KeyStatus.DONE if after_takeover_ends else KeyStatus.IN_PROGRESS)
    assert before[1] > stale.fence
    if step == "complete":
        assert answer["outcome"] == "processed"
        assert counts["counters"]["completion_lost"] == 1
    else:
        assert answer["outcome"] == "failed"
    assert leased.key().status is KeyStatus.DONE
    assert leased.key().attempts == 0, "the late failure counts no more"
    assert leased.effects() == {"1": 2}, "which is why it is counted and logged"
    assert deliver(consumer).outcome is Outcome.DUPLICATE


def test_a_late_completion_that_nobody_was_quicker_than_counts(leased):
    late = leased.start("pause:before_complete")
    late.wait_until_paused()
    until(lambda: leased.keys()["1"].lapsed, "the lease ends")
    late.go_on()
    answer, counts = late.wait()
    assert answer["outcome"] == "processed"
    assert not counts["counters"]["completion_lost"]
    assert deliver(leased.consumer()).outcome is Outcome.DUPLICATE
    assert leased.effects() == {"1": 1}


@pytest.mark.parametrize("point", ["after_claim", "after_effect", "before_commit"])
def test_a_transaction_that_stalls_makes_the_others_wait_and_happens_once(transactional, point):
    quick = (
        transactional.store.engine(connect_args={"timeout": 0.2})
        if transactional.store.kind == "sqlite"
        else None
    )
    checker = transactional.job.with_(lock_timeout_s=1.0).checker(transactional.store, quick)
    consumer = transactional.job.consumer(transactional.store, checker)
    late = transactional.start(f"pause:{point}")
    late.wait_until_paused()
    waiting = deliver(consumer)
    assert waiting.outcome in (Outcome.IN_PROGRESS, Outcome.UNAVAILABLE)
    assert waiting.action.value == "hold"
    assert transactional.effects() == {}
    late.go_on()
    assert late.wait()[0]["outcome"] == "processed"
    assert deliver_until_settled(consumer).outcome is Outcome.DUPLICATE
    assert transactional.effects() == {"1": 1}


# How an administrator, or a timeout, ends the one transaction that is open here.
ENDING = {
    "postgres": (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'",
        "SELECT pg_terminate_backend({})",
    ),
    "mysql": (
        (
            "SELECT trx_mysql_thread_id FROM information_schema.innodb_trx JOIN information_schema.processlist"
            " ON id = trx_mysql_thread_id WHERE db = DATABASE()"
        ),
        "KILL {}",
    ),
}


def the_only(connection, find):
    """What `find` finds as soon as it is one. MariaDB may show what it told another test a moment ago."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return connection.exec_driver_sql(find).scalars().one()
        except (sa.exc.OperationalError, sa.exc.NoResultFound):
            # MySQL 9 cannot show the list while the statement of another test, which may wait for a lock, has binary
            # values.
            if time.monotonic() > deadline:
                raise
            # MariaDB answers from its last reading of this list until 0.1 s pass without a query for it.
            time.sleep(0.3)


@pytest.mark.parametrize("sql_store", sorted(ENDING), indirect=True)
@pytest.mark.parametrize("point", ["after_effect", "before_commit"])
def test_a_stalled_transaction_that_the_server_ends_is_rolled_back_and_runs_once(transactional, point):

    late = transactional.start(f"pause:{point}")
    late.wait_until_paused()
    find, end = ENDING[transactional.store.kind]
    with transactional.store.engine().connect() as connection:
        connection.exec_driver_sql(end.format(the_only(connection, find)))
    consumer = transactional.consumer()
    assert deliver_until_settled(consumer).outcome is Outcome.PROCESSED
    assert transactional.effects() == {"1": 1}
    late.go_on()
    # Its COMMIT failed and it looked again: the key is somebody else's by now.
    assert late.wait()[0]["outcome"] in ("duplicate", "unavailable")
    assert transactional.effects() == {"1": 1}
