"""The start of a redelivered message is noted before it runs, and counted after a death; what does not die costs no
attempt."""

import threading
from dataclasses import replace

import pytest
import sqlalchemy as sa

from idempotent import Message, Outcome, Registry
from idempotent.claims import ClaimRequest, Failure
from idempotent.errors import DoomedTransactionError, StoreError
from idempotent.keys import KeySpace
from idempotent.message import Position
from idempotent.observe import Observer
from tests.checkers.sql.booking import consumer_of, only

KEY = KeySpace("orders", "default").key("1")
AGAIN = Message("orders", id="1", redelivered=True)


def attempts_of(store):
    with store.admin_engine.connect() as connection:
        found = connection.execute(sa.text(f"SELECT attempts FROM {store.table}_failures")).scalars().all()
    return sum(found)


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
            seen.append((rows_of(sql_store) > 0, attempts_of(sql_store)))

    checker = sql_store.transactional(strict=strict)
    consumer = consumer_of(sql_store, checker, looks)
    if died:
        assert not sql_store.transactional().note_starts([KEY])
    group = [AGAIN, Message("orders", id="2", redelivered=True)] if together else [AGAIN]

    def outcomes():
        results = consumer.process_many(group) if together else [consumer.process(AGAIN)]
        return {result.outcome for result in results}

    assert outcomes() == {Outcome.PROCESSED}
    # All are noted, and only what died before is counted.
    if seen:
        assert sorted(seen) == [(True, 0)] * (len(group) - died) + [(True, 1)] * died
    assert rows_of(sql_store) == 0
    assert outcomes() == {Outcome.DUPLICATE}
    assert rows_of(sql_store) == 0
    assert sql_store.booked() == {str(message.id): 1 for message in group}


@pytest.mark.parametrize("died", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_what_another_delivery_holds_stays_suspected(sql_store, died, together):
    """The note of the start may be that delivery's, which may die of the message."""
    only(sql_store, "mysql", "postgres")
    attempts = []

    def looks(*_):
        attempts.append(attempts_of(sql_store))

    consumer = consumer_of(sql_store, sql_store.transactional(lock_timeout_s=0.2), looks)
    other = sql_store.transactional()
    if died:
        assert not other.note_starts([KEY])
    holder = other.protocol.claim(ClaimRequest(KEY)).claim
    neighbours = [Message("orders", id=str(n), redelivered=True) for n in range(2, 5)] if together else []
    for _ in range(2):
        first, *others = (
            consumer.process_many([AGAIN, *neighbours]) if together else [consumer.process(AGAIN)]
        )
        assert first.outcome is Outcome.IN_PROGRESS
        assert {result.outcome for result in others} <= {Outcome.PROCESSED, Outcome.DUPLICATE}
        assert rows_of(sql_store) == 1
    attempts.clear()
    other.protocol.abandon(holder)
    assert consumer.process(AGAIN).outcome is Outcome.PROCESSED
    assert attempts == [1]  # it ran alone, and counted
    assert rows_of(sql_store) == 0


def test_what_another_delivery_holds_stops_nobody(sql_store):
    """A message waits to be alone only once its key is free: the wait stops all that the process does."""
    only(sql_store, "mysql", "postgres")
    running, gate = threading.Event(), threading.Event()

    def handle(message, session):
        if message.id == "long":
            running.set()
            gate.wait(20)

    consumer = consumer_of(sql_store, sql_store.transactional(lock_timeout_s=0.2), handle)
    other = sql_store.transactional()
    assert not other.note_starts([KEY])
    holder = other.protocol.claim(ClaimRequest(KEY)).claim
    long = threading.Thread(target=consumer.process, args=(Message("orders", id="long"),))
    long.start()
    assert running.wait(60)
    assert consumer.process(AGAIN).outcome is Outcome.IN_PROGRESS
    assert long.is_alive()
    gate.set()
    long.join(60)
    other.protocol.abandon(holder)


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
        if died:  # in an earlier delivery, which counts nothing yet
            sql_store.transactional().note_starts([KEY])
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
