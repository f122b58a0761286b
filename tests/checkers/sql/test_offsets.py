"""The next offset moves in the transaction of the effects, on every SQL database."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from sqlalchemy.orm import Session

from idempotent import Message, Outcome, Registry
from idempotent.checkers import OffsetChecker, checker_from_url
from idempotent.errors import ConfigurationError, StoreUnavailableError
from idempotent.keys import KeySpace
from idempotent.message import Position
from tests.support.stores import Store

TOPIC = "0d1fdd1e-topic"


@dataclass
class Shop:
    """A consumer that books each message, and what its handler shall do besides."""

    store: Store
    bad: dict[int, Exception] = field(default_factory=dict)
    ran: list[int] = field(default_factory=list)
    options: dict = field(default_factory=dict)

    def __post_init__(self):
        self.checker = OffsetChecker(self.store.engine(), table=self.store.table, lock_timeout_s=0.3)
        self.store.opened.callback(self.checker.close)
        self.consumer = Registry().consumer("orders", group="billing", checker=self.checker, **self.options)(
            self.handle
        )
        self.consumer.checker  # noqa: B018 - checks the combination, as a worker does at its start

    def handle(self, message: Message, session: Session) -> None:
        session.execute(self.store.effects.insert().values(id=str(message.position)))
        self.ran.append(message.position.offset)
        if message.position.offset in self.bad:
            raise self.bad[message.position.offset]

    def partition(self, number=0):
        return self.consumer.binding.requests.partition(TOPIC, number)

    def begin(self, offset=0, number=0):
        key = self.partition(number)
        return self.checker.begin({key: offset})[key]

    def run(self, *messages):
        return [result.outcome.value for result in self.consumer.process_many(messages)]

    def booked(self):
        return {name.rpartition("/")[2]: count for name, count in self.store.booked().items()}


def message(offset, partition=0, expected=None):
    before = offset if expected is None else expected
    return Message("orders", position=Position(TOPIC, partition, offset, before))


@pytest.fixture
def shop(sql_store):
    shop = Shop(sql_store)
    shop.begin()
    return shop


def test_each_offset_takes_effect_once_and_in_order(shop):
    assert shop.run(message(0)) == ["processed"]
    assert shop.run(message(0)) == ["duplicate"]
    assert shop.run(message(1), message(2)) == ["processed", "processed"]
    assert shop.run(message(1), message(2), message(3)) == ["duplicate", "duplicate", "processed"]
    assert shop.booked() == {"0": 1, "1": 1, "2": 1, "3": 1}
    assert shop.begin() == 4


def test_a_partition_is_one_row_however_many_messages(shop):
    shop.run(*(message(offset) for offset in range(50)))
    assert shop.begin(offset=7) == 50, "what is stored wins over where a new one would begin"


def test_a_partition_that_is_new_begins_where_the_adapter_says(shop):
    assert shop.begin(offset=17, number=1) == 17
    assert shop.run(message(16, 1), message(17, 1)) == ["duplicate", "processed"]


def test_a_message_whose_turn_has_not_come_waits(shop):
    assert shop.run(message(1)) == ["in_progress"]
    assert shop.run(message(1), message(2)) == ["in_progress", "in_progress"]
    assert shop.ran == []
    assert shop.run(message(0)) == ["processed"]
    assert shop.run(message(1)) == ["processed"]


def test_what_waited_and_comes_behind_later_ones_in_a_group_still_runs_before_them(shop):
    assert shop.run(message(2), message(3), message(0), message(1)) == ["processed"] * 4
    assert shop.ran == [0, 1, 2, 3]


def test_offsets_have_gaps(shop):
    assert shop.run(message(0), message(5, expected=1), message(9, expected=6)) == ["processed"] * 3
    assert shop.begin() == 10
    assert shop.run(message(30, expected=10)) == ["processed"]


def test_what_comes_after_a_message_that_is_not_here_waits_for_it(shop):
    assert shop.run(message(0), message(1), message(3)) == ["processed", "processed", "in_progress"]
    assert shop.begin() == 2
    assert shop.run(message(2), message(3)) == ["processed", "processed"]
    assert shop.booked() == {"0": 1, "1": 1, "2": 1, "3": 1}


def test_partitions_do_not_wait_for_each_other(shop):
    shop.begin(number=1)
    group = [message(1, 0), message(0, 1), message(1, 1)]
    assert shop.run(*group) == ["in_progress", "processed", "processed"]
    assert (shop.begin(), shop.begin(number=1)) == (0, 2)


def test_a_topic_of_the_same_name_made_later_is_another(shop):
    shop.run(message(0))
    again = Message("orders", position=Position("another-id", 0, 0, 0))
    key = shop.consumer.binding.requests.partition("another-id", 0)
    assert shop.checker.begin({key: 0}) == {key: 0}
    assert shop.run(again) == ["processed"]


def test_a_failure_rolls_back_and_holds_back_what_comes_after_it(shop):
    shop.bad[1] = ValueError("no")
    group = [message(offset) for offset in range(4)]
    assert shop.run(*group) == ["processed", "failed", "in_progress", "in_progress"]
    assert shop.booked() == {"0": 1}
    assert shop.begin() == 1
    shop.bad.clear()
    assert shop.run(*group) == ["duplicate", "processed", "processed", "processed"]
    assert shop.booked() == {"0": 1, "1": 1, "2": 1, "3": 1}


def test_attempts_are_counted_and_a_dead_message_is_skipped_when_its_copy_is_safe(sql_store):
    shop = Shop(sql_store, options={"max_attempts": 2})
    shop.begin()
    shop.bad[0] = ValueError("no")
    assert shop.run(message(0)) == ["failed"]
    assert shop.run(message(0)) == ["dead"]
    assert shop.begin() == 0, "dead, but nobody has a copy yet"
    assert shop.run(message(1)) == ["in_progress"]
    assert shop.checker.skip(shop.partition(), message(0).position)
    assert not shop.checker.skip(shop.partition(), message(0).position)
    assert shop.run(message(0), message(1)) == ["duplicate", "processed"]


def test_a_skip_out_of_turn_changes_nothing(shop):
    assert not shop.checker.skip(shop.partition(), message(3).position)
    assert shop.begin() == 0


def test_an_interrupt_rolls_back_and_counts_nothing(shop):
    shop.bad[0] = KeyboardInterrupt()
    with suppress(KeyboardInterrupt):
        shop.consumer.process(message(0))
    assert shop.begin() == 0
    assert shop.booked() == {}


def test_an_ignored_exception_moves_on_without_what_was_written(sql_store):
    shop = Shop(sql_store, options={"idempotent_for": (LookupError,)})
    shop.begin()
    shop.bad[0] = LookupError("gone")
    assert shop.run(message(0)) == ["ignored"]
    assert (shop.booked(), shop.begin()) == ({}, 1)


def test_two_owners_of_a_partition_never_both_book(sql_store):
    """A zombie goes on after its partition was given to another."""
    shops = [Shop(sql_store) for _ in range(2)]
    shops[0].begin()
    together = threading.Barrier(2)

    def work(shop):
        together.wait()
        for offset in range(40):
            while shop.run(message(offset))[0] not in ("processed", "duplicate"):
                pass

    threads = [threading.Thread(target=work, args=(shop,)) for shop in shops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shops[0].booked() == {str(offset): 1 for offset in range(40)}
    assert shops[0].begin() == 40


def test_a_partition_that_another_transaction_moves_is_in_progress(sql_store):
    if sql_store.kind == "sqlite":
        pytest.skip("one writer: the whole file is busy")
    shop = Shop(sql_store)
    shop.begin()
    held = shop.checker.protocol.claim(shop.consumer.binding.requests.of(message(0))).claim
    assert held is not None
    assert shop.run(message(0)) == ["in_progress"]
    assert shop.checker.protocol.complete(held)
    assert shop.run(message(0)) == ["duplicate"]


@pytest.mark.parametrize("committed", [True, False])
def test_when_the_answer_to_commit_is_lost_the_stored_offset_tells(shop, monkeypatch, committed):
    from idempotent.checkers.sql.handler_transaction import HandlerTransaction

    commit = HandlerTransaction.commit

    def lose(transaction):
        if not committed:
            transaction.driver.raw.close()
        commit(transaction)
        raise ConnectionResetError("the answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(HandlerTransaction, "commit", lose)
        result = shop.consumer.process(message(0))
    assert result.outcome is (Outcome.PROCESSED if committed else Outcome.UNAVAILABLE)
    assert shop.run(message(0)) == ["duplicate" if committed else "processed"]
    assert shop.booked() == {"0": 1}


def test_a_partition_nobody_has_begun_is_no_verdict(shop):
    result = shop.consumer.process(message(0, 9))
    assert result.outcome is Outcome.UNAVAILABLE
    assert "begin()" in str(result.error)


def test_an_unreachable_database_is_unavailable():
    checker = OffsetChecker("postgresql+psycopg://nobody@127.0.0.1:1/none")
    with pytest.raises(StoreUnavailableError):
        checker.begin({KeySpace("orders", "billing").key(f"{TOPIC}/0"): 0})
    checker.close()


@pytest.mark.parametrize(
    "option", [{"key": lambda m: "1"}, {"fingerprint": lambda m: m.body}, {"store_result": True}]
)
def test_what_needs_a_key_is_refused(sql_store, option):
    with pytest.raises(ConfigurationError, match=f"{next(iter(option))}= cannot go with OffsetChecker"):
        Shop(sql_store, options=option)


def test_a_message_without_a_position_is_rejected(shop):
    assert shop.run(Message("orders", id="1")) == ["rejected"]


def test_a_url_names_it():
    checker = checker_from_url("offsets+sqlite:///app.db", table="mine")
    assert isinstance(checker, OffsetChecker)
    checker.close()
