"""docs/when-it-runs-twice.md: each row of its table repeats an effect, and what prevents it does."""

import re
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from idempotent import Message, Outcome, Registry
from idempotent.checkers import (
    AttemptChecker,
    MemoryChecker,
    OffsetChecker,
    SqlChecker,
    TransactionalSqlChecker,
)
from idempotent.errors import ConfigurationError
from idempotent.message import Position
from idempotent.migrations import upgrade
from idempotent.testing import abandon_claim

PAGE = (Path(__file__).parents[2] / "docs" / "when-it-runs-twice.md").read_text()
LEASE_S, RETENTION_S = 30, 86400


class Effects(list):
    """A handler's effects outside of any transaction. The checker's clock is put forward by hand."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.memory = self.checker()

    def checker(self):
        return MemoryChecker(lease_s=LEASE_S, retention_s=RETENTION_S, clock=lambda: self.now)

    def consumer(self, checker=None, group="billing", handler=None, **options):
        declare = Registry().consumer("orders", group=group, checker=checker or self.memory, **options)
        return declare(handler or self.handle)

    def handle(self, message):
        self.append(message.body)


@pytest.fixture
def effects():
    return Effects()


@pytest.fixture
def engine(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE bookings (id VARCHAR(50))"))
    yield engine
    engine.dispose()


def book(message, session):
    session.execute(text("INSERT INTO bookings VALUES (:id)"), {"id": str(message.id)})


def booked(engine):
    with engine.connect() as connection:
        return connection.execute(text("SELECT count(*) FROM bookings")).scalar_one()


ORDER = Message("orders", b"7", id="1")


def run(consumer, *messages):
    return [consumer.process(message).outcome for message in messages or (ORDER,)]


def test_every_row_has_its_test():
    rows = [int(number) for number in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)]
    tests = {int(name.split("_")[2]) for name in globals() if re.match(r"test_row_\d+_", name)}
    assert rows == list(range(1, 14))
    assert tests == set(rows)


def test_row_1_another_id(effects):
    sent_twice = [Message("orders", b"7", id=each) for each in ("1", "2")]
    run(effects.consumer(), *sent_twice)
    assert len(effects) == 2
    run(effects.consumer(group="by order", key=lambda message: message.body), *sent_twice)
    assert len(effects) == 3


def test_row_2_no_key(effects):
    without = [Message("orders", b"7")] * 2
    assert run(effects.consumer(), *without) == [Outcome.REJECTED] * 2
    run(effects.consumer(on_missing_key="process"), *without)
    assert len(effects) == 2


def test_row_3_another_group_but_not_another_queue(effects):
    run(effects.consumer())
    run(effects.consumer(queue="orders.v2"), Message("orders.v2", b"7", id="1"))
    assert len(effects) == 1
    run(effects.consumer(group="invoices"))
    assert len(effects) == 2


def test_row_4_keys_elsewhere(effects):
    run(effects.consumer())
    run(effects.consumer(effects.checker()))
    assert len(effects) == 2


def test_row_5_an_answer_that_is_overruled(effects, engine, monkeypatch):
    checker = TransactionalSqlChecker(engine)
    with pytest.raises(ConfigurationError, match="on_store_error"):
        run(effects.consumer(checker, on_store_error="process"))
    run(effects.consumer())
    transactional = effects.consumer(checker, handler=book)
    run(transactional)
    monkeypatch.setenv("IDEMPOTENT_DISABLED", "all")
    run(effects.consumer())
    run(effects.consumer(checker, handler=book))
    checker.close()
    assert (len(effects), booked(engine)) == (2, 2)


@pytest.mark.parametrize(("policy", "times"), [("retry", 2), ("park", 1), (lambda _: True, 1)])
def test_row_6_a_death_before_the_record(effects, policy, times):
    consumer = effects.consumer(on_expired_lease=policy)
    abandon_claim(consumer, ORDER)
    effects.append(b"7")  # by the process that then died
    effects.now += LEASE_S + 1
    run(consumer)
    assert len(effects) == times


def test_row_7_a_handler_that_stands_still(effects):
    others = effects.consumer()

    def pause(message):
        effects.now += LEASE_S + 1
        run(others)
        effects.handle(message)

    run(effects.consumer(handler=pause))
    assert len(effects) == 2


def test_row_8_an_exception_after_the_effect(effects, engine):
    def fail_once(message):
        effects.handle(message)
        if len(effects) == 1:
            raise TimeoutError

    def fail_once_booked(message, session):
        book(message, session)
        fail_once(message)

    consumer = effects.consumer(handler=fail_once)
    assert run(consumer, ORDER, ORDER) == [Outcome.FAILED, Outcome.PROCESSED]
    assert len(effects) == 2
    effects.clear()
    checker = TransactionalSqlChecker(engine)
    run(effects.consumer(checker, handler=fail_once_booked), ORDER, ORDER)
    checker.close()
    assert booked(engine) == 1


def test_row_9_an_effect_outside_of_the_session(effects, engine):
    def mail_and_book(message, session):
        book(message, session)
        effects.handle(message)
        if len(effects) == 1:
            raise TimeoutError

    checker = TransactionalSqlChecker(engine)
    run(effects.consumer(checker, handler=mail_and_book), ORDER, ORDER)
    checker.close()
    assert (len(effects), booked(engine)) == (2, 1)


def test_row_10_a_store_that_forgets(effects, engine):
    checkers = SqlChecker(engine), TransactionalSqlChecker(engine)
    leased = effects.consumer(checkers[0])
    transactional = effects.consumer(checkers[1], group="booking", handler=book)
    run(leased)
    run(transactional)
    with engine.begin() as connection:  # a backup from before is restored
        connection.execute(text("DELETE FROM deduplicate_tbl"))
        connection.execute(text("DELETE FROM bookings"))
    run(leased)
    run(transactional)
    for checker in checkers:
        checker.close()
    assert (len(effects), booked(engine)) == (2, 1)


def test_row_11_after_the_retention_and_gc(effects):
    consumer = effects.consumer()
    run(consumer)
    effects.now += RETENTION_S + 1
    assert run(consumer) == [Outcome.DUPLICATE]
    effects.memory.garbage_collect()
    run(consumer)
    assert len(effects) == 2


def test_row_12_a_key_that_a_person_frees(effects):
    consumer = effects.consumer()
    run(consumer)
    admin = effects.memory.admin()
    assert admin.reopen(admin.get(consumer.key_of("1")))
    run(consumer)
    assert len(effects) == 2


def test_row_13_checkers_without_keys(effects, engine):
    offsets = OffsetChecker(engine)
    sent_twice = [
        Message("orders", b"7", id="1", position=Position("t", 0, place, place)) for place in (0, 1)
    ]
    consumer = effects.consumer(offsets, handler=book)
    offsets.begin({consumer.binding.requests.partition("t", 0): 0})
    assert run(consumer, *sent_twice, sent_twice[1]) == [*[Outcome.PROCESSED] * 2, Outcome.DUPLICATE]
    offsets.close()
    assert booked(engine) == 2
    run(effects.consumer(AttemptChecker()), sent_twice[0], sent_twice[0])
    assert len(effects) == 2
