"""A redelivered message of a transactional consumer is counted before it runs; what does not die costs no attempt."""

import threading

import pytest
import sqlalchemy as sa

from idempotent import Message, Outcome, Registry
from idempotent.claims import ClaimRequest, Decision, Failure
from idempotent.errors import DoomedTransactionError, StoreError
from idempotent.keys import KeySpace
from idempotent.message import Position
from idempotent.observe import Observer
from tests.checkers.sql.booking import consumer_of

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


@pytest.mark.parametrize("strict", [False, True])
def test_a_redelivered_message_that_succeeds_leaves_no_attempt(sql_store, strict):
    seen = []
    checker = sql_store.transactional(strict=strict)
    consumer = consumer_of(sql_store, checker, lambda *_: seen.append(attempts_of(sql_store)))
    if sql_store.kind == "sqlite":
        consumer = consumer_of(sql_store, checker, lambda *_: seen.append(1))
    assert consumer.process(AGAIN).outcome is Outcome.PROCESSED
    assert seen == [1]
    assert attempts_of(sql_store) == 0
    assert consumer.process(AGAIN).outcome is Outcome.DUPLICATE
    assert attempts_of(sql_store) == 0
    assert sql_store.booked() == {"1": 1}


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


def test_an_observer_is_told_that_a_start_was_not_counted(altered_sql_store):
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
    assert answers[0] is Decision
    assert issubclass(answers[1], StoreError)


def test_a_redelivered_message_that_fails_costs_one_attempt(sql_store):
    consumer = consumer_of(
        sql_store, sql_store.transactional(), failing(*[ValueError("no")] * 3), max_attempts=3
    )
    outcomes = [consumer.process(AGAIN).outcome for _ in range(4)]
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
    claim = checker.desk.claim(ClaimRequest(KEY)).claim
    assert checker.desk.release(claim, Failure("second", 9)).attempts == 2


@pytest.mark.parametrize("savepoints", [False, True])
def test_the_redelivered_messages_of_a_group_run_alone(sql_store, savepoints):
    checker = sql_store.transactional(savepoints=savepoints)
    consumer = consumer_of(sql_store, checker)
    messages = [Message("orders", id=str(n), redelivered=n % 2 == 1) for n in range(6)]
    results = consumer.process_many(messages)
    assert [result.outcome for result in results] == [Outcome.PROCESSED] * 6
    assert sql_store.booked() == {str(n): 1 for n in range(6)}
    assert attempts_of(sql_store) == 0
