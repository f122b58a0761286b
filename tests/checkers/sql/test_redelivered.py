"""The start of a redelivered message is noted before it runs; one without an end is a death, and no attempt."""

import threading
import time
from dataclasses import replace

import pytest
import sqlalchemy as sa

from idempotent import Message, Outcome, Registry, current_claim
from idempotent.claims import DIED_ERROR, ClaimRequest, Failure, Verdict
from idempotent.errors import DoomedTransactionError, StoreError
from idempotent.keys import KeySpace
from idempotent.message import Position
from idempotent.observe import Observer
from tests.checkers.sql.booking import consumer_of, only
from tests.support.logs import logged

KEY = KeySpace("orders", "default").key("1")
AGAIN = Message("orders", id="1", redelivered=True)


def attempts_of(store):
    return sum(counts_of(store, "<>"))


def starts_of(store):
    return sum(counts_of(store, "="))


def counts_of(store, equal):
    statement = sa.text(
        f"SELECT attempts FROM {store.table}_failures WHERE last_error {equal} '{DIED_ERROR}'"
    )
    with store.admin_engine.connect() as connection:
        return connection.execute(statement).scalars().all()


def failing(*errors):
    errors = list(errors)

    def handle(message, session):
        if errors:
            raise errors.pop(0)

    return handle


def rows_of(store):
    with store.admin_engine.connect() as connection:
        return connection.execute(sa.text(f"SELECT count(*) FROM {store.table}_failures")).scalar()


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("died", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_a_redelivered_message_that_succeeds_leaves_nothing(sql_store, strict, died, together):
    seen = []

    def looks(*_):
        if sql_store.kind != "sqlite":  # it has one writer
            seen.append(starts_of(sql_store))

    checker = sql_store.transactional(strict=strict)
    consumer = consumer_of(sql_store, checker, looks)
    if died:
        sql_store.note_death(KEY)
    group = [AGAIN, Message("orders", id="2", redelivered=True)] if together else [AGAIN]

    def outcomes():
        results = consumer.process_many(group) if together else [consumer.process(AGAIN)]
        return {result.outcome for result in results}

    assert outcomes() == {Outcome.PROCESSED}
    # All starts are noted: one of each, and one more of what died before, which runs by itself.
    assert not seen or sorted(seen) == sorted([len(group)] * (len(group) - died) + [2] * died)
    assert rows_of(sql_store) == 0
    assert outcomes() == {Outcome.DUPLICATE}
    assert rows_of(sql_store) == 0
    assert sql_store.booked() == {str(message.id): 1 for message in group}


@pytest.mark.parametrize("deaths", [0, 1, 3])
@pytest.mark.parametrize("together", [False, True])
def test_what_another_delivery_holds_keeps_its_deaths(sql_store, deaths, together):
    """However often a copy asks for it: what does not run dies of nothing, and is charged for nothing."""
    only(sql_store, "mysql", "postgres")
    seen = []
    consumer = consumer_of(
        sql_store,
        sql_store.transactional(lock_timeout_s=0.2),
        lambda message, _: seen.append(current_claim().deaths) if message.id == "1" else None,
    )
    for _ in range(deaths):
        sql_store.note_death(KEY)
    other = sql_store.transactional()
    holder = other.protocol.claim(ClaimRequest(KEY)).claim
    neighbours = [Message("orders", id=str(n), redelivered=True) for n in range(2, 5)] if together else []
    for _ in range(2):
        first, *others = (
            consumer.process_many([AGAIN, *neighbours]) if together else [consumer.process(AGAIN)]
        )
        assert first.outcome is Outcome.IN_PROGRESS
        assert {result.outcome for result in others} <= {Outcome.PROCESSED, Outcome.DUPLICATE}
        assert starts_of(sql_store) == deaths
    other.protocol.abandon(holder)
    assert consumer.process(AGAIN).outcome is Outcome.PROCESSED
    assert seen == [deaths]
    assert rows_of(sql_store) == 0


def test_a_copy_of_what_this_process_runs_holds_nothing(sql_store):
    """No connection, no place of a handler, and no attempt: it is told so at once."""
    running, gate, statements = threading.Event(), threading.Event(), []

    def handle(message, session):
        if message.id == "long":
            running.set()
            gate.wait(60)

    engine = sql_store.engine()
    consumer = consumer_of(sql_store, sql_store.transactional(engine), handle)
    long = Message("orders", id="long", redelivered=True)
    first = threading.Thread(target=consumer.process, args=(long,))
    first.start()
    assert running.wait(60)
    sa.event.listen(engine, "checkout", lambda *_: statements.append("connection"))
    for again in (consumer.process(long), *consumer.process_many([long])):
        assert (again.outcome, again.reason) == (Outcome.IN_PROGRESS, "this process runs it")
    assert not statements
    if sql_store.kind != "sqlite":  # it has one writer
        other = Message("orders", id="other")
        results = consumer.process_many([long, other, Message("orders", id="another")])
        assert [each.outcome.value for each in results] == ["in_progress", "processed", "processed"]
    gate.set()
    first.join(60)
    assert consumer.process(long).outcome is Outcome.DUPLICATE
    assert rows_of(sql_store) == 0


def test_redelivered_messages_run_in_one_group(sql_store):
    """A reconnection marks all that was in hand: three statements more for all of them."""
    statements = []
    engine = sql_store.engine()
    checker = sql_store.transactional(engine)
    consumer = consumer_of(sql_store, checker)
    consumer.process_many([Message("orders", id=f"first {n}") for n in range(20)])
    connections = set()

    def handle(message, session):
        connections.add(id(session.connection().connection.driver_connection))

    consumer = consumer_of(sql_store, checker, handle)
    sa.event.listen(engine, "commit", lambda _: statements.append("commit"))
    group = [Message("orders", id=str(n), redelivered=True) for n in range(20)]
    assert {result.outcome for result in consumer.process_many(group)} == {Outcome.PROCESSED}
    assert len(connections) == 1
    assert len(statements) <= 1


@pytest.mark.parametrize("marked", [(1,), (2,), (1, 3)])
def test_in_a_partition_a_redelivered_message_is_not_overtaken_by_its_group(sql_store, marked):
    seen = []
    consumer = consumer_of(sql_store, sql_store.transactional(), lambda message, _: seen.append(message.id))
    group = [
        Message("orders", id=str(n), redelivered=n in marked, position=Position("topic", 0, n, n))
        for n in range(1, 5)
    ]
    assert {result.outcome for result in consumer.process_many(group)} == {Outcome.PROCESSED}
    assert seen == ["1", "2", "3", "4"]


def test_an_observer_is_told_that_a_start_was_not_noted(altered_sql_store):
    answers = []

    class Watching(Observer):
        def claimed(self, consumer, message, request, answer):
            answers.append(type(answer))

    store = altered_sql_store
    consumer = Registry(observers=[Watching()]).consumer("orders", checker=store.transactional())(
        lambda _: None
    )
    there, away = f"{store.table}_failures", f"{store.table}_away"
    with store.admin_engine.begin() as connection:
        connection.execute(sa.text(f"ALTER TABLE {there} RENAME TO {away}"))
    assert consumer.process(AGAIN).outcome is Outcome.UNAVAILABLE
    with store.admin_engine.begin() as connection:
        connection.execute(sa.text(f"ALTER TABLE {away} RENAME TO {there}"))
    (answer,) = answers
    assert issubclass(answer, StoreError)


@pytest.mark.parametrize("position", [None, 7])
@pytest.mark.parametrize("died", [False, True])
def test_a_redelivered_message_that_fails_costs_one_attempt(sql_store, died, position):
    checker = sql_store.transactional()
    consumer = consumer_of(sql_store, checker, failing(*[ValueError("no")] * 3), max_attempts=3)
    outcomes = []
    for _ in range(4):
        if died:  # in an earlier delivery, which counts no attempt
            sql_store.note_death(KEY)
        outcomes.append(consumer.process(replace(AGAIN, position=position)).outcome)
        sql_store.age(1000.0)
    assert outcomes == [Outcome.FAILED, Outcome.FAILED, Outcome.DEAD, Outcome.DEAD]
    assert attempts_of(sql_store) == 3
    assert sql_store.transactional().admin().get(KEY).last_error == "ValueError: no"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, DoomedTransactionError, KeyError])
def test_what_is_no_failure_costs_a_redelivered_message_nothing(sql_store, error):
    checker = sql_store.transactional()
    consumer = consumer_of(sql_store, checker, failing(error()), max_attempts=1, idempotent_for=KeyError)
    if issubclass(error, Exception):
        assert consumer.process(AGAIN).outcome is (
            Outcome.IGNORED if error is KeyError else Outcome.PROCESSED
        )
    else:
        with pytest.raises(error):
            consumer.process(AGAIN)
    assert attempts_of(sql_store) == 0
    assert consumer.process(AGAIN).outcome in (Outcome.PROCESSED, Outcome.DUPLICATE)


def test_a_copy_that_waits_costs_the_delivery_that_runs_no_attempt(sql_store):
    """Contention counts nothing: the last attempt of the running one is not its first."""
    running, gate = threading.Event(), threading.Event()

    def handle(message, session):
        running.set()
        gate.wait(20)
        raise ValueError("no")

    consumer = consumer_of(sql_store, sql_store.transactional(lock_timeout_s=0.2), handle, max_attempts=2)
    results = []
    first = threading.Thread(target=lambda: results.append(consumer.process(Message("orders", id="1"))))
    first.start()
    assert running.wait(20)
    engine = sql_store.engine(connect_args={"timeout": 0.2} if sql_store.kind == "sqlite" else {})
    copy = consumer_of(sql_store, sql_store.transactional(engine, lock_timeout_s=0.2), max_attempts=2)
    assert copy.process(AGAIN).outcome in (Outcome.IN_PROGRESS, Outcome.UNAVAILABLE)
    gate.set()
    first.join(20)
    assert [result.outcome for result in results] == [Outcome.FAILED]
    assert attempts_of(sql_store) == 1


def test_earlier_errors_are_kept_while_a_redelivery_runs(sql_store):
    checker = sql_store.transactional()
    consumer = consumer_of(
        sql_store, checker, failing(ValueError("first"), KeyboardInterrupt()), max_attempts=5
    )
    assert consumer.process(AGAIN).outcome is Outcome.FAILED
    with pytest.raises(KeyboardInterrupt):
        consumer.process(AGAIN)
    claim = checker.protocol.claim(ClaimRequest(KEY)).claim
    assert checker.protocol.release(claim, Failure("second", 9)).attempts == 2


@pytest.mark.parametrize("savepoints", [False, True])
def test_redelivered_messages_of_a_group_run_and_leave_nothing(sql_store, savepoints):
    checker = sql_store.transactional(savepoints=savepoints)
    consumer = consumer_of(sql_store, checker)
    messages = [Message("orders", id=str(n), redelivered=n % 2 == 1) for n in range(6)]
    results = consumer.process_many(messages)
    assert [result.outcome for result in results] == [Outcome.PROCESSED] * 6
    assert sql_store.booked() == {str(n): 1 for n in range(6)}
    assert rows_of(sql_store) == 0


def test_a_copy_does_not_run_between_the_rollback_of_a_failure_and_its_record(sql_store):
    """The rollback has freed the key. The record waits for a lock that somebody else has."""
    only(sql_store, "mysql", "postgres")
    ran, failed = [], threading.Event()

    def handle(message, session):
        ran.append(message.id)
        failed.set()
        raise ConnectionError("away")

    consumer = consumer_of(sql_store, sql_store.transactional(), handle, max_attempts=9)
    columns = "key_hash, k, attempts, last_error, update_at, expires_at"
    row = {"hash": consumer.key_of("1").hash}
    with sql_store.admin_engine.connect() as somebody:
        insert = f"INSERT INTO {sql_store.table}_failures ({columns}) VALUES (:hash, 'x', 0, 'x', 0, 0)"
        somebody.execute(sa.text(insert), row)
        first = threading.Thread(target=consumer.process, args=(Message("orders", id="1"),))
        first.start()
        assert failed.wait(60)
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            copy = consumer.process(Message("orders", id="1"))
            assert copy.outcome in (Outcome.IN_PROGRESS, Outcome.UNAVAILABLE)
        somebody.rollback()
    first.join(60)
    assert ran == ["1"]


def test_a_copy_whose_key_another_process_holds_waits_without_a_start(sql_store):
    """A process that dies while a copy waits must leave no death: that copy did not run."""
    if sql_store.kind == "sqlite":
        pytest.skip("one writer: there the note itself waits for the file")
    holder = sql_store.transactional().protocol
    claim = holder.claim(ClaimRequest(KEY)).claim
    began = time.monotonic()
    decision = sql_store.transactional(lock_timeout_s=60.0).protocol.claim(
        ClaimRequest(KEY, redelivered=True)
    )
    assert decision.verdict is Verdict.IN_PROGRESS
    assert time.monotonic() - began < 30.0, "it waited for the lock, with its start noted"
    assert rows_of(sql_store) == 0
    holder.release(claim)


def test_what_a_group_does_not_run_waits_for_no_lock_of_the_group_itself(sql_store, caplog):
    """A duplicate beside a new message: on SQLite the transaction of the new one has the file."""
    consumer = consumer_of(sql_store, sql_store.transactional(), lambda *_: None)
    assert consumer.process(replace(AGAIN, redelivered=False)).outcome is Outcome.PROCESSED
    results = consumer.process_many([AGAIN, Message("orders", id="2", redelivered=True)])
    assert [each.outcome for each in results] == [Outcome.DUPLICATE, Outcome.PROCESSED]
    assert rows_of(sql_store) == 0
    assert logged(caplog, "run_end_not_recorded") == []
