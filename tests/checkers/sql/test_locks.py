"""Transactions that wait for each other: a held key, a busy file, a deadlock."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pytest
import sqlalchemy as sa

from idempotent import Message, Outcome
from idempotent.admin import KeyFilter
from idempotent.claims import ClaimRequest, Completion, Failure, KeyStatus, Verdict
from idempotent.errors import StoreBusyError
from idempotent.keys import KeySpace
from idempotent.observe import Event, counters
from tests.checkers.sql.booking import book, consumer_of, keys, messages, outcomes, raw
from tests.support.stores import open_store

SPACE = KeySpace("orders", "billing")


@pytest.mark.parametrize("lock_timeout_s", [0, 1])
def test_a_key_held_by_another_transaction_is_in_progress_and_its_rollback_lets_the_next_one_run(
    sql_store, lock_timeout_s
):
    if sql_store.kind == "sqlite":
        pytest.skip("SQLite has one writer: see the busy file")
    started, finish = threading.Event(), threading.Event()
    slow_results = []

    def wait(message, session):
        started.set()
        finish.wait(20)
        raise ValueError("rolled back")

    slow = consumer_of(sql_store, sql_store.transactional(), wait)
    thread = threading.Thread(target=lambda: slow_results.append(slow.process(messages("1")[0])))
    thread.start()
    assert started.wait(20)
    quick = consumer_of(sql_store, sql_store.transactional(lock_timeout_s=lock_timeout_s))
    waiting = quick.process(messages("1")[0])
    assert (waiting.outcome, waiting.retry_after_s) == (Outcome.IN_PROGRESS, 1.0)
    assert outcomes(quick.process_many(messages("1", "2"))) == ["in_progress", "processed"]
    finish.set()
    thread.join(20)
    assert slow_results[0].outcome is Outcome.FAILED
    assert quick.process(messages("1")[0]).outcome is Outcome.PROCESSED
    assert sql_store.booked() == {"1": 1, "2": 1}


@pytest.mark.parametrize("ids", ["1", pytest.param("14", marks=pytest.mark.slow)], ids=["single", "group"])
@pytest.mark.parametrize("sql_store", ["mysql", "postgres"], indirect=True)
def test_a_statement_that_may_not_wait_as_long_as_a_lock_finds_the_key_in_progress(sql_store, ids):
    setting = {"mysql": "max_statement_time = 2", "postgres": "statement_timeout = 2000"}[sql_store.kind]
    engine, connected = sql_store.engine(), []

    @sa.event.listens_for(engine, "connect")
    def limit(raw, _record):
        connected.append(raw)
        with raw.cursor() as cursor:
            cursor.execute(f"SET {setting}")
        raw.commit()

    def meet(*_):
        waits.extend(quick.process_many(messages(*ids)))

    quick, waits = consumer_of(sql_store, sql_store.transactional(engine)), []
    quick.process(messages("2")[0])
    before = len(connected)
    assert consumer_of(sql_store, sql_store.transactional(), meet).process(messages("1")[0])
    assert outcomes(waits)[0] == "in_progress"
    assert quick.process(messages("3")[0]).outcome is Outcome.PROCESSED
    assert len(connected) == before, "its connections were closed"


def test_waiting_for_a_key_does_not_shorten_the_handlers_own_lock_waits(sql_store):
    if sql_store.kind == "sqlite":
        pytest.skip("SQLite's busy timeout belongs to the engine")
    setting = {"mysql": "SELECT @@innodb_lock_wait_timeout", "postgres": "SHOW lock_timeout"}[sql_store.kind]
    engine = sql_store.engine()
    with engine.connect() as connection:
        before = connection.scalar(sa.text(setting))
    seen = []
    checker = sql_store.transactional(lock_timeout_s=1)
    consumer = consumer_of(
        sql_store, checker, lambda _, session: seen.append(session.scalar(sa.text(setting)))
    )
    consumer.process(messages("1")[0])
    consumer.process_many(messages("2", "3"))
    assert seen == [before] * 3


def test_a_busy_sqlite_file_is_unavailable(sql_store):
    if sql_store.kind != "sqlite":
        pytest.skip("SQLite only")
    blocker = sql_store.engine()
    consumer = consumer_of(
        sql_store, sql_store.transactional(sql_store.engine(connect_args={"timeout": 0.2}))
    )
    with blocker.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        result = consumer.process(messages("1")[0])
    assert result.outcome in (Outcome.UNAVAILABLE, Outcome.IN_PROGRESS)
    assert result.action.value == "hold"
    assert consumer.process(messages("1")[0]).outcome is Outcome.PROCESSED


def deadlock(session):
    """What MySQL does to the victim: everything is undone, and an error says so."""
    raw(session, "ROLLBACK")
    session.execute(
        sa.text("SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'Deadlock found'")
    )


@pytest.mark.parametrize("swallowed", [False, True])
@pytest.mark.parametrize("savepoints", [False, True])
def test_a_deadlock_inside_a_group_leaves_no_effect_without_its_key(sql_store, swallowed, savepoints):
    if sql_store.kind != "mysql":
        pytest.skip("1213 is MySQL's; test_two_groups_in_opposite_order covers the others")
    checker = sql_store.transactional(savepoints=savepoints)
    victims = ["3"]

    def handle(message, session):
        if message.id in victims:
            victims.remove(message.id)
            try:
                deadlock(session)
            except sa.exc.OperationalError:
                if not swallowed:
                    raise
            book(sql_store, session, Message("orders", id="3-goes-on"))

    consumer = consumer_of(sql_store, checker, handle, max_attempts=1)
    results = consumer.process_many(messages("1", "2", "3", "4"))
    assert outcomes(results) == ["processed"] * 4, "and no attempt was burnt, or 3 would be dead"
    assert sql_store.booked() == {"1": 1, "2": 1, "3": 1, "4": 1}
    assert keys(checker) == {"1", "2", "3", "4"}
    assert counters.snapshot()[consumer.name, Event.GROUP_REPEATED] >= 1


@pytest.fixture(params=["mysql", "postgres"])
def deadlocking_store(request):
    """A store with more than one writer at a time, whose tables the test may alter."""
    yield from open_store(request.param, request)


def test_a_real_deadlock_between_two_handlers_costs_a_retry_and_no_attempt(deadlocking_store):
    rows = deadlocking_store.effects
    engine = deadlocking_store.engine()
    with engine.begin() as connection:
        connection.execute(rows.insert(), [{"id": "a"}, {"id": "b"}])
    both, have_met = threading.Barrier(2, timeout=10), threading.Event()

    def cross(message, session):
        first, second = ("a", "b") if message.id == "1" else ("b", "a")
        session.execute(rows.update().where(rows.c.id == first).values(id=first))
        if not have_met.is_set():  # the victim runs again, alone
            with suppress(threading.BrokenBarrierError):
                both.wait()
            have_met.set()
        session.execute(rows.update().where(rows.c.id == second).values(id=second))

    checker = deadlocking_store.transactional()
    if deadlocking_store.kind == "mysql":
        with engine.begin() as connection:
            connection.execute(sa.text(f"ALTER TABLE {rows.name} ADD PRIMARY KEY (id)"))
    consumer = consumer_of(deadlocking_store, checker, cross, max_attempts=1)
    results = []
    threads = [
        threading.Thread(target=lambda m=m: results.append(consumer.process(m))) for m in messages("1", "2")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    both.abort()
    assert outcomes(results) == ["processed", "processed"], [r.error for r in results]
    assert deadlocking_store.booked() == {"a": 1, "b": 1, "1": 1, "2": 1}


@pytest.mark.parametrize("fatal", [False, True])
def test_copies_of_one_message_that_fail_at_once_are_each_counted_and_end(sql_store, fatal):
    """Each copy waits for the key, and has it as soon as the one before it is rolled back."""
    copies, most = 6, 1 if fatal else 3
    options = {"retry_for": ValueError, "max_attempts": 99} if fatal else {"max_attempts": most}
    begun = threading.Barrier(copies, timeout=20)
    runs = []

    def fail(message, session):
        runs.append(message.id)
        raise (TypeError if fatal else ValueError)("no")

    checker = sql_store.transactional(lock_timeout_s=20)
    consumer = consumer_of(sql_store, checker, fail, **options)

    def deliver():
        begun.wait()
        while consumer.process(messages("1")[0]).outcome is not Outcome.DEAD:
            pass

    threads = [threading.Thread(target=deliver) for _ in range(copies)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert most <= len(runs) <= most + copies - 1
    (record,) = checker.admin().list(KeyFilter())
    assert record.status is KeyStatus.DEAD
    assert most <= record.attempts <= len(runs)  # one that fails beside the last one counts nothing
    assert consumer.process(messages("1")[0]).outcome is Outcome.DEAD
    assert sql_store.booked() == {}


def test_a_claim_that_does_not_wait_says_at_once_that_a_key_is_locked(sql_store):
    """20 claims that wait take a second each."""
    if sql_store.kind == "sqlite":
        pytest.skip("SQLite waits for its file")
    holder, checker = sql_store.transactional(), sql_store.leased()

    def ask(*names):
        return checker.protocol.claim_many([ClaimRequest(SPACE.key(name), waits=False) for name in names])

    held = holder.protocol.claim(ClaimRequest(SPACE.key("held"))).claim
    try:
        began = time.monotonic()
        for number in range(10):
            with pytest.raises(StoreBusyError):
                checker.protocol.claim(ClaimRequest(SPACE.key("held"), waits=False))
            with pytest.raises(StoreBusyError):
                ask("held", f"free {number}")
        assert time.monotonic() - began < 10
    finally:
        holder.protocol.release(held)
    assert all(decision.claim for decision in ask("held", "free 0"))


MINE = [SPACE.key(str(number)) for number in range(3)]


def claimed(checker, keys):
    decisions = checker.protocol.claim_many([ClaimRequest(key) for key in keys])
    assert {decision.verdict for decision in decisions} == {Verdict.ACQUIRED}
    return [decision.claim for decision in decisions]


@pytest.mark.timeout(45)
@pytest.mark.parametrize("end", ["complete", "release", "fail", "duplicates"])
@pytest.mark.parametrize("other", range(2))
@pytest.mark.parametrize("sql_store", ["mysql", "postgres"], indirect=True)
def test_a_group_waits_for_no_other_key_of_a_small_table(sql_store, end, other):
    """A server may read all of a table that has few rows, and lock it."""
    checker, theirs = sql_store.transactional(), sql_store.transactional()
    held = claimed(theirs, [SPACE.key(f"other-{other}")])
    try:
        mine = claimed(checker, MINE)
        if end == "release":
            assert all(
                each.owned for each in checker.protocol.release_many([(claim, None) for claim in mine])
            )
        elif end == "fail":
            failures = [(claim, Failure("no", 5)) for claim in mine]
            assert all(each.owned for each in checker.protocol.release_many(failures))
        else:
            assert checker.protocol.complete_many([Completion(claim) for claim in mine]) == [True] * 3
        if end == "duplicates":
            decisions = checker.protocol.claim_many([ClaimRequest(key) for key in MINE])
            assert {decision.verdict for decision in decisions} == {Verdict.DUPLICATE}
    finally:
        theirs.protocol.abandon(held[0])
