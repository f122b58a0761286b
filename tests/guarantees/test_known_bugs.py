"""The bugs found in QMQ, Powertools and idemkit, one test each: ours does not have them.

QMQ's are lettered as in its review: qunarcorp/qmq at 5abc92f4. Powertools is 3.37.0, idemkit 1.0.2.

Long because it is one list of other libraries' bugs.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Action, Message, Outcome, Registry
from idempotent.checkers import MemoryChecker
from idempotent.checkers.sql.handler_transaction import HandlerTransaction
from idempotent.claims import ClaimRequest, Failure, Verdict
from idempotent.errors import (
    ConfigurationError,
    DeadKeyError,
    FingerprintMismatchError,
    StoreError,
    StoreUnavailableError,
)
from tests.guarantees.crash.child import die_in_handler
from tests.support.forked import Forked
from tests.support.hooks import answering, unreachable

WAIT_S = 20


class AlreadyShipped(Exception):
    pass


class OutOfStock(Exception):
    pass


def message(name="1", body=b"", **headers):
    return Message("orders", body, id=name, headers=headers)


def consumer_of(checker, handle, **options):
    """A consumer of a registry of its own; `handle` takes what a handler takes."""
    return Registry().consumer("orders", checker=checker, **options)(handle)


def booking(store, checker, then=lambda message, session: None, **options):
    """A transactional consumer that books the message and then does what the test wants."""

    def handle(message, session: Session):
        session.execute(store.effects.insert().values(id=message.id))
        then(message, session)

    return consumer_of(checker, handle, **options)


class Raising:
    """A handler that raises these, one a call, and then returns."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.calls = 0
        self.effects = 0

    def __call__(self, message, session=None):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        self.effects += 1


def taking_a_message(handle):
    """The handler without its optional second parameter."""

    def handler(message):
        return handle(message)

    return handler


def both_checkers(store):
    """The leased checker of a store, and the transactional one where it has one."""
    yield store.leased()
    if store.kind not in ("memory", "redis"):
        yield store.transactional()


# QMQ


def test_qmq_a_retry_for_decides_between_another_attempt_and_death(store):
    """`retryFor` did nothing: both branches marked the message failed. And it took one class, no list."""
    for number, checker in enumerate(both_checkers(store)):
        handle = Raising(OutOfStock(), LookupError(), AlreadyShipped())
        consumer = consumer_of(
            checker,
            taking_a_message(handle),
            group=str(number),
            retry_for=(OutOfStock, LookupError),
        )
        outcomes = [consumer.process(message()).outcome for _ in range(4)]
        assert outcomes == [Outcome.FAILED, Outcome.FAILED, Outcome.DEAD, Outcome.DEAD]
        assert handle.calls == 3


def test_qmq_a_the_handlers_own_connection_errors_are_judged_like_its_others(store):
    """An OSError of its own affairs (HTTP, files) is not the database's, though drivers raise such too."""
    for number, checker in enumerate(both_checkers(store)):
        handle = Raising(ConnectionResetError("shop"), FileNotFoundError("no"), FileExistsError("already"))
        consumer = consumer_of(
            checker,
            taking_a_message(handle),
            group=str(number),
            retry_for=ConnectionError,
            idempotent_for=FileExistsError,
        )
        results = [consumer.process(message(name)) for name in "123"]
        assert [r.outcome for r in results] == [Outcome.FAILED, Outcome.DEAD, Outcome.IGNORED]
        assert handle.calls == 3


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_qmq_b_what_is_no_exception_never_keeps_the_key_or_commits(store, stop):
    """`Error` kept the key, or committed the transaction, although the message was nacked: lost."""
    handle = Raising(stop())
    consumer = consumer_of(store.leased(), taking_a_message(handle), group="leased", max_attempts=1)
    with pytest.raises(stop):
        consumer.process(message())
    assert consumer.process(message()).outcome is Outcome.PROCESSED
    if store.kind not in ("memory", "redis"):
        consumer = booking(store, store.transactional(), Raising(stop()), max_attempts=1)
        with pytest.raises(stop):
            consumer.process(message())
        assert store.booked() == {}
        assert consumer.process(message()).outcome is Outcome.PROCESSED
        assert store.booked() == {"1": 1}


def test_qmq_c_a_wrapped_exception_is_judged_by_what_it_wraps(store):
    """Every exception came wrapped in a RuntimeError, so `idempotentFor=MyException` never matched."""

    def handle(message):
        raise RuntimeError("processor message error") from AlreadyShipped()

    consumer = consumer_of(store.leased(), handle, idempotent_for=AlreadyShipped, retry_for=OutOfStock)
    assert [consumer.process(message()).outcome for _ in range(2)] == [Outcome.IGNORED, Outcome.DUPLICATE]


def test_qmq_d_a_failed_claim_never_deletes_the_completed_key(store):
    """When the store failed at the claim, the key of an earlier, completed delivery was deleted."""
    for number, checker in enumerate(both_checkers(store)):
        handle = Raising()
        consumer = consumer_of(checker, taking_a_message(handle), group=str(number))
        assert consumer.process(message()).outcome is Outcome.PROCESSED
        with answering(checker, _claim=unreachable, _claim_many=unreachable):
            assert consumer.process(message()).outcome is Outcome.UNAVAILABLE
            assert consumer.process_many([message(), message("2")])[0].outcome is Outcome.UNAVAILABLE
        assert consumer.process(message()).outcome is Outcome.DUPLICATE
        assert handle.effects == 1


def test_qmq_d_a_claim_that_was_not_acquired_cannot_change_the_key(store):
    """Neither the delivery that met a completed key, nor one that met a running one, can free or finish it."""
    checker = store.leased()
    consumer = consumer_of(checker, Raising(), group="d")
    done, running = (consumer.binding.requests.of(message(name)) for name in ("done", "running"))
    checker.protocol.complete(checker.protocol.claim(done).claim)
    claim = checker.protocol.claim(running).claim
    for request in (done, running):
        assert (
            checker.protocol.claim(
                consumer.binding.requests.of(message(request.key.text.rpartition(":")[2]))
            ).claim
            is None
        )
        stranger = ClaimRequest(request.key)
        forged = type(claim)(request.key, claim.fence, stranger.owner)
        assert not checker.protocol.release(forged).owned
        assert not checker.protocol.release(forged, Failure("no", 1)).owned
        assert not checker.protocol.complete(forged)
    assert checker.protocol.claim(consumer.binding.requests.of(message("done"))).verdict is Verdict.DUPLICATE
    assert (
        checker.protocol.claim(consumer.binding.requests.of(message("running"))).verdict
        is Verdict.IN_PROGRESS
    )
    assert checker.protocol.complete(claim)


def test_qmq_e_a_failed_commit_is_not_acked(sql_store, monkeypatch):
    """A failed COMMIT was logged and acked: the message was lost."""
    consumer = booking(sql_store, sql_store.transactional(), max_attempts=1)

    commit = HandlerTransaction.commit

    with monkeypatch.context() as outage:
        outage.setattr(HandlerTransaction, "commit", lambda held: (held.driver.raw.close(), commit(held)))
        results = [consumer.process(message()), *consumer.process_many([message("2"), message("3")])]
    assert [(r.outcome, r.action) for r in results] == [(Outcome.UNAVAILABLE, Action.HOLD)] * 3
    assert sql_store.booked() == {}
    assert [consumer.process(message(name)).outcome for name in "123"] == [Outcome.PROCESSED] * 3
    assert sql_store.booked() == {"1": 1, "2": 1, "3": 1}


def test_qmq_e_a_commit_that_a_constraint_refuses_is_the_messages_failure(sql_store):
    """The same, where the database says no at COMMIT rather than not at all."""
    if sql_store.kind == "mysql":
        pytest.skip("InnoDB has no deferred constraints")
    engine = sql_store.engine()
    parent, child = f"{sql_store.table}_p", f"{sql_store.table}_c"
    if sql_store.kind == "sqlite":
        sa.event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys=ON"))
    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE TABLE {parent} (id VARCHAR(10) PRIMARY KEY)"))
        connection.execute(
            sa.text(
                f"CREATE TABLE {child} (id VARCHAR(10) REFERENCES {parent} DEFERRABLE INITIALLY DEFERRED)"
            )
        )

    def orphan(message, session):
        session.execute(sa.text(f"INSERT INTO {child} VALUES ('nobody')"))

    try:
        consumer = booking(sql_store, sql_store.transactional(engine), orphan)
        result = consumer.process(message())
        assert (result.outcome, result.action) == (Outcome.FAILED, Action.DELAY)
        assert sql_store.booked() == {}
    finally:
        with engine.begin() as connection:
            connection.execute(sa.text(f"DROP TABLE {child}"))
            connection.execute(sa.text(f"DROP TABLE {parent}"))


def test_qmq_e_a_failed_delete_is_offered_again(store):
    """After a failed DELETE the nacked message was skipped as a duplicate: lost. The docs admit it."""
    checker = store.leased(lease_s=600.0)
    consumer = consumer_of(checker, Raising(OutOfStock()))
    with answering(checker, _release=unreachable, _release_many=unreachable):
        assert consumer.process(message()).action is Action.DELAY
        assert consumer.process(message()).outcome is Outcome.IN_PROGRESS, "not a duplicate"
    assert consumer.process(message()).outcome is Outcome.PROCESSED


def eventually(outcome):
    """The first outcome that is not IN_PROGRESS."""
    deadline = time.monotonic() + WAIT_S
    while (found := outcome()) is Outcome.IN_PROGRESS and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def test_qmq_f_a_process_that_dies_after_its_claim_does_not_lose_the_message(shared_store, tmp_path):
    """The INSERT alone meant "processed": who died after it lost the message."""
    store = shared_store
    for mode in ("leased", "transactional") if store.kind != "redis" else ("leased",):
        died = Forked(die_in_handler, store.kind, store.url, store.table, mode, folder=tmp_path)
        assert died.wait(WAIT_S) == 9, died.err
        handle = Raising()
        checker = store.leased() if mode == "leased" else store.transactional()
        consumer = consumer_of(checker, taking_a_message(handle), group=mode)
        if mode == "leased":
            assert consumer.process(message()).outcome is Outcome.IN_PROGRESS
            store.age(3600)
        # The server may take a moment to end the transaction of a client that is gone.
        assert eventually(lambda consumer=consumer: consumer.process(message()).outcome) is Outcome.PROCESSED
        assert handle.effects == 1


def test_qmq_f_a_duplicate_of_a_running_message_is_not_acked(store):
    """It was acked while the first was still running, and lost when that failed."""
    started, finish = threading.Event(), threading.Event()

    def slow(message):
        started.set()
        assert finish.wait(WAIT_S)
        raise OutOfStock

    checker = store.leased()
    first = consumer_of(checker, slow)
    second = consumer_of(checker, Raising())
    thread = threading.Thread(target=first.process, args=[message()])
    thread.start()
    try:
        assert started.wait(WAIT_S)
        meanwhile = [second.process(message()), second.process_many([message(), message("2")])[0]]
    finally:
        finish.set()
        thread.join(WAIT_S)
    assert [(r.outcome, r.action) for r in meanwhile] == [(Outcome.IN_PROGRESS, Action.HOLD)] * 2
    assert second.process(message()).outcome is Outcome.PROCESSED


def test_qmq_g_the_key_is_free_before_the_retry_can_look(store):
    """A local retry was scheduled before the key was deleted: it met its own key and acked, lost."""
    for number, checker in enumerate(both_checkers(store)):
        handle = Raising(OutOfStock(), OutOfStock())
        consumer = consumer_of(checker, taking_a_message(handle), group=str(number))
        assert consumer.process(message()).outcome is Outcome.FAILED
        with pytest.raises(OutOfStock):
            consumer(message())
        assert consumer.process(message()).outcome is Outcome.PROCESSED, "at once, without any wait"
        assert handle.effects == 1


def test_qmq_h_a_retry_that_succeeds_forgets_the_earlier_exception(store):
    """The exception of the first try stayed set: the key of the successful one was deleted and nacked: twice."""
    for number, checker in enumerate(both_checkers(store)):
        handle = Raising(OutOfStock())
        consumer = consumer_of(checker, taking_a_message(handle), group=str(number))
        # In one group, so the copy is the retry of the first within one call.
        results = consumer.process_many([message(), message("2"), message()])
        last = results[2]
        if last.outcome is Outcome.DUPLICATE:  # the group was undone, and its repetition was the retry
            last = results[0]
        assert (last.outcome, last.action, last.error) == (Outcome.PROCESSED, Action.ACK, None)
        assert consumer.process(message()).outcome is Outcome.DUPLICATE


def test_qmq_i_each_checker_has_transactions_of_its_own_wherever_they_end(sql_store):
    """One static ThreadLocal held the transaction of all checkers, and was never cleared."""
    inner_effects = []
    inner = consumer_of(MemoryChecker(), inner_effects.append, group="inner")
    other = booking(sql_store, sql_store.transactional(), group="other")

    def nest(message, session):
        inner.process(message)
        if sql_store.kind != "sqlite":  # which has one writer
            assert other.process(message).outcome is Outcome.PROCESSED
        raise OutOfStock

    outer = booking(sql_store, sql_store.transactional(), nest, group="outer")
    assert outer.process(message()).outcome is Outcome.FAILED
    assert sql_store.booked() == ({} if sql_store.kind == "sqlite" else {"1": 1}), "only the inner one's"
    assert len(inner_effects) == 1
    assert other.process(message()).outcome is (
        Outcome.PROCESSED if sql_store.kind == "sqlite" else Outcome.DUPLICATE
    )


def test_qmq_i_a_claim_may_end_in_another_thread_than_it_began_in(store):
    """An `ack()` from another thread committed the wrong transaction or none."""
    for number, checker in enumerate(both_checkers(store)):
        consumer = consumer_of(checker, Raising(), group=str(number))
        claim = checker.protocol.claim(consumer.binding.requests.of(message())).claim
        with ThreadPoolExecutor(1) as elsewhere:
            assert elsewhere.submit(checker.protocol.complete, claim).result(WAIT_S)
        assert consumer.process(message()).outcome is Outcome.DUPLICATE


def test_qmq_j_nothing_runs_without_the_transaction_it_was_promised(sql_store):
    """`ignoreOnFailed` ran the handler without a transaction when none could be had, and hid the failed commit."""
    checker = sql_store.transactional()
    with pytest.raises(ConfigurationError, match="on_store_error"):
        booking(sql_store, checker, on_store_error="process").process(message())
    assert sql_store.booked() == {}

    url = "sqlite:////no/such/folder/x.db"
    if sql_store.kind != "sqlite":
        url = sa.make_url(sql_store.url).set(port=1)
    handle = Raising()
    down = booking(sql_store, sql_store.transactional(sa.create_engine(url)), handle)
    result = down.process(message())
    assert (result.outcome, result.action, handle.calls) == (Outcome.UNAVAILABLE, Action.HOLD, 0)
    assert isinstance(result.error, StoreError)


@pytest.mark.parametrize(
    "names",
    [
        ("x" * 100 + "1", "x" * 100 + "2"),
        ("x" * 255 + "1", "x" * 255 + "2"),
        ("x" * 100_000 + "1", "x" * 100_000 + "2"),
        ("Order-1", "order-1", "order-1 ", " order-1", "ORDER-1"),
        ("e\u0301", "\u00e9", "e"),
        ("a\0", "a", "a\0b"),
    ],
    ids=["past 100", "past 255", "long", "case and blanks", "Unicode forms", "NUL"],
)
def test_qmq_k_keys_that_differ_anywhere_are_different_keys(store, names):
    """MariaDB's INSERT IGNORE cut keys at 100 characters and compared them by collation: lost messages."""
    for number, checker in enumerate(both_checkers(store)):
        handle = Raising()
        consumer = consumer_of(checker, taking_a_message(handle), group=str(number))
        assert [consumer.process(message(name)).outcome for name in names] == [Outcome.PROCESSED] * len(names)
        again = consumer.process_many([message(name) for name in names])
        assert [result.outcome for result in again] == [Outcome.DUPLICATE] * len(names)
        grouped = consumer_of(checker, taking_a_message(handle), group=f"{number}-group")
        fresh = grouped.process_many([message(name) for name in names])
        assert [result.outcome for result in fresh] == [Outcome.PROCESSED] * len(names)
        assert handle.effects == 2 * len(names)


def test_qmq_k_the_parts_of_a_key_do_not_run_into_each_other(store):
    """`subject%group%id`: a group named `b%c` was the group `b` of a longer id."""
    checker = store.leased()
    registry = Registry()
    handle = Raising()
    pairs = [("a", "b%c", "d"), ("a%b", "c", "d"), ("a", "b", "c%d"), ("a:b", "c", "d"), ("a", "b:c", "d")]
    for subject, group, name in pairs:
        consumer = registry.consumer(subject, group=group, checker=checker)(taking_a_message(handle))
        assert consumer.process(Message(subject, id=name)).outcome is Outcome.PROCESSED
    assert handle.effects == len(pairs)


# Powertools


def test_powertools_an_identical_replay_passes_the_content_check(store):
    """The completed record dropped the hash: an identical replay raised IdempotencyValidationError."""
    for number, checker in enumerate(both_checkers(store)):
        consumer = consumer_of(
            checker, lambda m: "ok", group=str(number), fingerprint=lambda m: m.body, store_result=True
        )
        results = [consumer.process(message(body=body)) for body in (b"10 EUR", b"10 EUR", b"99 EUR")]
        assert [r.outcome for r in results] == [Outcome.PROCESSED, Outcome.DUPLICATE, Outcome.REJECTED]
        assert (results[1].value, results[1].error) == ("ok", None)
        assert isinstance(results[2].error, FingerprintMismatchError)


def test_powertools_a_zombie_that_fails_late_does_not_free_its_successors_key(store):
    """A's lease had ended and B ran; A's late failure deleted B's record, and C ran beside B."""
    checker = store.leased(lease_s=600.0)
    consumer = consumer_of(checker, Raising(), group="z")
    zombie = checker.protocol.claim(consumer.binding.requests.of(message())).claim
    checker.protocol.abandon(zombie)
    store.age(601)
    requests = consumer.binding.requests
    successor = checker.protocol.claim(requests.after_a_death(requests.of(message())))
    assert successor.verdict is Verdict.ACQUIRED
    assert successor.claim.fence > zombie.fence
    assert not checker.protocol.release(zombie, Failure("late", 1)).owned
    assert not checker.protocol.release(zombie).owned
    assert not checker.protocol.complete(zombie)
    assert checker.protocol.claim(consumer.binding.requests.of(message())).verdict is Verdict.IN_PROGRESS
    assert checker.protocol.complete(successor.claim)


def test_powertools_consumers_that_share_a_checker_keep_their_own_options(store):
    """The first one's configuration won: the second one's key expression was ignored, its messages dropped."""
    for number, checker in enumerate(both_checkers(store)):
        registry = Registry()
        ran = []

        @registry.consumer("orders", group=f"a{number}", checker=checker, key=lambda m: m.headers["order"])
        def by_order(message, ran=ran):
            ran.append("order")

        @registry.consumer("orders", group=f"b{number}", checker=checker, key=lambda m: m.headers["line"])
        def by_line(message, ran=ran):
            ran.append("line")

        group = [message(order="1", line="1"), message(order="1", line="2")]
        assert [by_order.process(m).outcome for m in group] == [Outcome.PROCESSED, Outcome.DUPLICATE]
        assert [by_line.process(m).outcome for m in group] == [Outcome.PROCESSED] * 2
        assert ran == ["order", "line", "line"]


@pytest.mark.parametrize("value", [0, False, "", [], {}, 0.0])
def test_powertools_a_falsy_result_is_replayed_as_it_was(store, value):
    """`0` came back as `None`."""
    for number, checker in enumerate(both_checkers(store)):
        consumer = consumer_of(checker, lambda m: value, group=str(number), store_result=True)
        consumer.process(message())
        again = consumer.process(message())
        assert again.outcome is Outcome.DUPLICATE
        assert (again.value, type(again.value)) == (value, type(value))


def test_powertools_an_interrupt_frees_the_key_at_once(store):
    """Only `Exception` was caught: KeyboardInterrupt left the key in progress for an hour."""
    for number, checker in enumerate(both_checkers(store)):
        handle = Raising(KeyboardInterrupt(), KeyboardInterrupt())
        consumer = consumer_of(checker, taking_a_message(handle), group=str(number), max_attempts=1)
        with pytest.raises(KeyboardInterrupt):
            consumer(message())
        with pytest.raises(KeyboardInterrupt):
            consumer.process_many([message(), message("2")])
        assert [consumer.process(message(n)).outcome for n in "12"] == [Outcome.PROCESSED] * 2


def test_powertools_an_async_handler_is_not_completed_unawaited():
    """The coroutine counted as the result: completed, and never awaited."""

    async def nothing():
        raise AssertionError

    result = consumer_of(MemoryChecker(), lambda _message: nothing()).process(Message("orders", id="1"))
    assert result.outcome is Outcome.FAILED
    assert "coroutine" in str(result.error)


# idemkit


def test_idemkit_contention_counts_as_no_attempt(store):
    """After four answers "conflict" the second real failure of three was "exhausted", and acked."""
    for number, checker in enumerate(both_checkers(store)):
        handle = Raising(OutOfStock(), OutOfStock(), OutOfStock())
        consumer = consumer_of(checker, taking_a_message(handle), group=str(number), max_attempts=3)
        outcomes = []
        for _ in range(3):
            outcomes.append(consumer.process(message()).outcome)
            if outcomes[-1] is Outcome.FAILED and not checker.group_is_atomic:
                holder = checker.protocol.claim(consumer.binding.requests.of(message())).claim
                for _ in range(4):
                    assert consumer.process(message()).outcome is Outcome.IN_PROGRESS
                    busy = consumer.process_many([message(), message(f"other-{len(outcomes)}")])
                    assert busy[0].outcome is Outcome.IN_PROGRESS
                checker.protocol.release(holder)
            handle.errors = [OutOfStock()] * (3 - len(outcomes))
        assert outcomes == [Outcome.FAILED, Outcome.FAILED, Outcome.DEAD]
        result = consumer.process(message())
        assert (result.outcome, result.action) == (Outcome.DEAD, Action.DEAD_LETTER), (
            "dead-lettered, not acked"
        )
        assert isinstance(result.error, DeadKeyError)


@pytest.mark.slow
def test_idemkit_contention_with_a_transaction_counts_as_no_attempt(sql_store):
    """The same, where an open transaction holds the key."""
    if sql_store.kind == "sqlite":
        pytest.skip("one writer: there the whole file is busy")
    checker = sql_store.transactional(lock_timeout_s=0.1)
    handle = Raising(OutOfStock())
    consumer = booking(sql_store, checker, handle, max_attempts=2)
    assert consumer.process(message()).outcome is Outcome.FAILED
    holder = sql_store.transactional().protocol.claim(consumer.binding.requests.of(message())).claim
    held = [consumer.process(message()).outcome for _ in range(3)]
    holder.transaction.close()
    assert held == [Outcome.IN_PROGRESS] * 3
    handle.errors = [OutOfStock()]
    assert consumer.process(message()).outcome is Outcome.DEAD, "its second attempt, not its fifth"


def test_idemkit_one_failed_renewal_cancels_no_running_handler(store):
    """One blip of a renewal cancelled a handler that went on all the same: two effects."""
    checker = store.leased(
        lease_s=600.0
    )  # the handler starts the rounds: short leases end on a paused machine
    renewals, rounds = [], []
    renew = checker._renew_many

    def blip(claims):
        renewals.append(len(claims))
        if len(renewals) == 1:
            raise StoreUnavailableError("blip")
        return renew(claims)

    effects = []
    renewed, seen = threading.Event(), threading.Event()

    def slow(message):
        effects.append(message.id)
        for _ in range(3):
            checker.protocol._keeper._round()
            rounds.append(checker.protocol._keeper._repeating.runs)
        renewed.set()
        assert seen.wait(WAIT_S)
        return "done"

    consumer = consumer_of(checker, slow)
    results = []
    thread = threading.Thread(target=lambda: results.append(consumer.process(message())))
    with answering(checker, _renew_many=blip):
        thread.start()
        assert renewed.wait(WAIT_S)
        meanwhile = [consumer.process(message()).outcome for _ in range(3)]
        seen.set()
        thread.join()
    assert results[0].outcome is Outcome.PROCESSED
    assert rounds == [True] * 3, "further rounds follow"
    assert renewals == [1, 1, 1], "the next rounds tried again"
    assert effects == ["1"]
    assert meanwhile == [Outcome.IN_PROGRESS] * 3
    assert consumer.process(message()).outcome is Outcome.DUPLICATE
