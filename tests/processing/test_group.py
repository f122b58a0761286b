"""What `process_many` promises: one outcome for each message, in its place, whatever becomes of its neighbours."""

from __future__ import annotations

import builtins
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Backoff, Message, Outcome, Registry
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.sql.unit import Unit
from idempotent.claims import KeyStatus
from idempotent.consumer import Consumer
from idempotent.errors import (
    DeadKeyError,
    FingerprintMismatchError,
    MissingKeyError,
    StoreUnavailableError,
)
from idempotent.message import Position
from idempotent.observe import Event, counters
from idempotent.stores.sql import cursor
from tests.support.stores import ALL, SQL, Store, open_store


@dataclass
class Shop:
    """A store, one checker over it, and consumers whose handlers do what a message's body says."""

    store: Store
    mode: str
    calls: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.checker = self.another_checker()

    @property
    def transactional(self) -> bool:
        return self.mode != "leased"

    def another_checker(self) -> AbstractIdempotentChecker:
        if self.transactional:
            return self.store.transactional(savepoints=self.mode == "savepoints", lock_timeout_s=0.3)
        return self.store.leased()

    def consumer(self, checker: AbstractIdempotentChecker | None = None, **options) -> Consumer:
        """A consumer whose handler books each message and then raises the exception its body names, if any.

        A leased handler raises first: what a handler does outside a transaction, it must undo by itself.
        """
        options.setdefault("retry_for", ValueError)
        options.setdefault("idempotent_for", KeyError)
        make = Registry().consumer("orders", checker=checker or self.checker, **options)
        batch = options.get("batch", False)

        def handle(given):
            messages = given if batch else [given]
            self.calls.append([message.id for message in messages])
            for message in messages:
                if message.body:
                    raise getattr(builtins, message.body.decode())(message.id)

        def handle_booking(given, session: Session):
            for message in given if batch else [given]:
                session.execute(self.store.effects.insert().values(id=message.id))
            handle(given)

        return make(handle_booking if self.transactional else handle)

    def effects(self) -> Counter[str]:
        """How often each effect happened: handler calls that came back, or what was committed."""
        if self.transactional:
            return Counter(self.store.booked())
        return Counter(name for call in self.calls for name in call)

    @contextmanager
    def held(self, consumer: Consumer, message: Message, by: str) -> Iterator[None]:
        """Somebody else is at this message meanwhile."""
        if by == "row":
            checker = self.store.leased() if self.transactional else self.checker
        else:
            checker = self.another_checker()
        claim = checker.desk.claim(consumer.binding.requests.of(message)).claim
        assert claim is not None
        try:
            yield
        finally:
            checker.desk.release(claim)


def open_shop(mode: str, request: pytest.FixtureRequest) -> Iterator[Shop]:
    with contextmanager(open_store)(request.param[1], request, reuse=True) as store:
        yield Shop(store, mode)


LEASED = [pytest.param(("leased", kind), id=f"leased-{kind}") for kind in ALL]
TRANSACTIONAL = [
    pytest.param((mode, kind), id=f"{mode}-{kind}")
    for mode in ("transactional", "savepoints")
    for kind in SQL
]


@pytest.fixture(params=[*LEASED, *TRANSACTIONAL])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    yield from open_shop(request.param[0], request)


@pytest.fixture(params=LEASED)
def leased_shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    yield from open_shop(request.param[0], request)


@pytest.fixture(params=TRANSACTIONAL)
def transactional_shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    yield from open_shop(request.param[0], request)


def message(name, body="", **headers):
    return Message("orders", body.encode(), id=name, headers=headers)


def messages(*names):
    return [message(name) for name in names]


def outcomes(results):
    return [result.outcome.value for result in results]


def content(given):
    return given.headers.get("content", "same")


@pytest.mark.parametrize("held_by", ["row", "transaction"])
def test_every_message_of_a_mixed_group_gets_its_own_outcome_in_its_place(shop, held_by):
    if held_by == "transaction" and (not shop.transactional or shop.store.kind == "sqlite"):
        pytest.skip("only there can an open transaction hold one key")
    consumer = shop.consumer(fingerprint=content, max_attempts=2, backoff=Backoff(initial_s=3))
    before = [message("done"), message("dead", "RuntimeError"), message("other")]
    assert outcomes(consumer.process_many(before)) == ["processed", "dead", "processed"]
    shop.calls.clear()
    group = [
        message("fresh"),
        message("done"),
        message("fails", "ValueError"),
        message("fresh"),
        message(None),
        message("held"),
        message("ignored", "KeyError"),
        message("other", content="changed"),
        message("fatal", "RuntimeError"),
        message("dead"),
        message("dead"),
        message("fails"),  # a copy of a failed first runs
        message("ignored"),
        message("fresh", content="changed"),
        message("last"),
        message("held"),
        message("fatal"),
    ]
    with shop.held(consumer, message("held"), held_by):
        results = consumer.process_many(group)
    assert outcomes(results) == [
        "processed",
        "duplicate",
        "failed",
        "duplicate",
        "rejected",
        "in_progress",
        "ignored",
        "rejected",
        "dead",
        "dead",
        "dead",
        "processed",
        "duplicate",
        "rejected",
        "processed",
        "in_progress",
        "dead",
    ]
    expected = {
        2: ValueError,
        4: MissingKeyError,
        6: KeyError,
        7: FingerprintMismatchError,
        8: RuntimeError,
        9: DeadKeyError,
        10: DeadKeyError,
        13: FingerprintMismatchError,
        16: RuntimeError,
    }
    assert {i: type(r.error) for i, r in enumerate(results) if r.error} == expected
    assert results[2].error.args == ("fails",), "its own exception, not a neighbour's"
    assert results[2].retry_after_s == 3
    assert results[5].retry_after_s > 0
    effects = shop.effects()
    if shop.transactional:
        assert effects == dict.fromkeys(["done", "other", "fresh", "fails", "last"], 1)
    else:
        assert effects == {"fresh": 1, "fails": 2, "ignored": 1, "fatal": 1, "last": 1}
    again = consumer.process_many(messages("fresh", "fails", "ignored", "last", "held", "fatal"))
    assert outcomes(again) == ["duplicate", "duplicate", "duplicate", "duplicate", "processed", "dead"]


def test_results_keep_the_order_of_the_messages_whatever_order_their_keys_sort_in(shop):
    names = [f"{number * 37 % 100}" for number in range(100)]
    consumer = shop.consumer()
    every_third = [message(name, "KeyError" if int(name) % 3 == 0 else "") for name in names]
    wanted = ["ignored" if int(name) % 3 == 0 else "processed" for name in names]
    assert outcomes(consumer.process_many(every_third)) == wanted
    evens = [name for name in names if int(name) % 2 == 0]
    mixed = [name for pair in zip(evens, (f"new-{n}" for n in evens), strict=True) for name in pair]
    assert outcomes(consumer.process_many(messages(*mixed))) == ["duplicate", "processed"] * 50


def test_an_empty_group_is_no_work(shop):
    assert shop.consumer().process_many([]) == []
    assert shop.consumer(batch=True).process_many([]) == []
    assert shop.calls == []


def test_a_group_of_one_is_a_message(shop):
    consumer = shop.consumer(max_attempts=2)
    assert outcomes(consumer.process_many(messages("1"))) == ["processed"]
    assert outcomes(consumer.process_many(messages("1"))) == ["duplicate"]
    assert outcomes(consumer.process_many(messages("2", "2"))) == ["processed", "duplicate"]
    assert outcomes(consumer.process_many([message("3", "ValueError")] * 3)) == ["failed", "dead", "dead"]


def test_a_group_without_any_key_runs_nothing(shop):
    assert outcomes(shop.consumer().process_many(messages(None, None))) == ["rejected"] * 2
    assert shop.calls == []


def test_copies_of_a_failed_first_run_one_after_the_other_until_one_succeeds(shop):
    consumer = shop.consumer(max_attempts=9)
    group = [message("1", "ValueError"), message("2"), message("1", "ValueError"), message("1"), message("1")]
    results = consumer.process_many(group)
    # The last copy goes by its first, which failed; so it asks the store itself, and hears of the one before it.
    assert outcomes(results) == ["failed", "processed", "failed", "processed", "duplicate"]
    if shop.transactional:
        assert shop.effects() == {"1": 1, "2": 1}


def test_attempts_used_up_in_a_group_kill_the_message_and_only_it(shop):
    consumer = shop.consumer(max_attempts=2, backoff=Backoff(initial_s=1, multiplier=2))
    first = consumer.process_many([message("1"), message("2", "ValueError"), message("3")])
    second = consumer.process_many([message("4"), message("2", "ValueError"), message("5")])
    assert outcomes(first) == ["processed", "failed", "processed"]
    assert first[1].retry_after_s == 1
    assert outcomes(second) == ["processed", "dead", "processed"]
    assert isinstance(second[1].error, ValueError)


def test_a_group_in_which_everything_fails(shop):
    consumer = shop.consumer(max_attempts=2)
    bad = [message(name, "ValueError") for name in "123"]
    assert outcomes(consumer.process_many(bad)) == ["failed"] * 3
    assert outcomes(consumer.process_many(bad)) == ["dead"] * 3
    if shop.transactional:
        assert shop.effects() == {}


def test_a_savepoint_undoes_its_own_message_and_nothing_runs_twice(transactional_shop):
    consumer = transactional_shop.consumer()
    results = consumer.process_many([message("1"), message("2", "ValueError"), message("3")])
    assert outcomes(results) == ["processed", "failed", "processed"]
    calls = [name for call in transactional_shop.calls for name in call]
    if transactional_shop.mode == "savepoints":
        assert calls == ["1", "2", "3"]
    else:
        assert calls == ["1", "2", "1", "2", "3"], "rolled back at the failure, then each alone"
    assert transactional_shop.effects() == {"1": 1, "3": 1}


def test_a_lapsed_claim_is_taken_over_alone_beside_a_failing_neighbour(shop):
    """Its group leaves it, whoever made the claim: alone, its lapse counts against nobody else."""
    lapsing = shop.store.leased()
    if shop.store.kind == "memory":
        shop.checker = lapsing
    consumer = shop.consumer(max_attempts=3)
    claim = lapsing.desk.claim(consumer.binding.requests.of(message("lapsed"))).claim
    lapsing.desk.abandon(claim)
    shop.store.age(3600)
    group = [message("1"), message("lapsed"), message("bad", "ValueError"), message("3")]
    results = consumer.process_many(group)
    assert outcomes(results) == ["processed", "processed", "failed", "processed"]
    assert outcomes(consumer.process_many(messages("1", "lapsed", "3"))) == ["duplicate"] * 3


@pytest.mark.parametrize("batch", [False, True])
def test_a_lapsed_claim_does_not_come_behind_later_messages_of_its_partition(shop, batch):
    lapsing = shop.store.leased()
    if shop.store.kind == "memory":
        shop.checker = lapsing
    consumer = shop.consumer(batch=batch)
    in_order = [
        replace(message(str(offset)), position=Position("t", 0, offset, offset)) for offset in range(4)
    ]
    for left in in_order[:2]:
        lapsing.desk.abandon(lapsing.desk.claim(consumer.binding.requests.of(left)).claim)
    shop.store.age(3600)
    assert outcomes(consumer.process_many(in_order)) == ["processed"] * 4
    assert [name for call in shop.calls for name in call] == ["0", "1", "2", "3"]


# Batch handlers


def test_a_batch_handler_gets_the_fresh_messages_in_one_call(shop):
    consumer = shop.consumer(batch=True)
    consumer.process_many(messages("done"))
    shop.calls.clear()
    with shop.held(consumer, message("held"), "row"):
        results = consumer.process_many(messages("b", "done", "a", "b", None, "held", "c"))
    assert outcomes(results) == [
        "processed",
        "duplicate",
        "processed",
        "duplicate",
        "rejected",
        "in_progress",
        "processed",
    ]
    assert shop.calls == [["b", "a", "c"]]


def test_a_failed_batch_is_tried_one_by_one_and_burns_no_attempt_of_the_innocent(shop):
    consumer = shop.consumer(batch=True, max_attempts=1)
    results = consumer.process_many([message("1"), message("2", "ValueError"), message("3")])
    assert outcomes(results) == ["processed", "dead", "processed"], "max_attempts=1: one burnt would be death"
    assert shop.calls == [["1", "2", "3"], ["1"], ["2"], ["3"]]
    if shop.transactional:
        assert shop.effects() == {"1": 1, "3": 1}
    assert outcomes(consumer.process_many(messages("1", "3"))) == ["duplicate"] * 2


def test_a_batch_that_fails_as_a_whole_only_has_no_guilty_message(shop):
    seen = []
    make = Registry().consumer("orders", checker=shop.checker, batch=True, max_attempts=1)

    def handle(given):
        seen.append(len(given))
        if len(given) > 1:
            raise ValueError("too many")

    def handle_in_session(given, session: Session):
        handle(given)

    consumer = make(handle_in_session if shop.transactional else handle)
    assert outcomes(consumer.process_many(messages("1", "2"))) == ["processed"] * 2
    assert seen == [2, 1, 1]


def test_a_harmless_exception_of_a_batch_is_harmless_only_for_its_own_message(shop):
    consumer = shop.consumer(batch=True)
    results = consumer.process_many([message("1"), message("2", "KeyError"), message("3")])
    assert outcomes(results) == ["processed", "ignored", "processed"]
    assert outcomes(consumer.process_many(messages("1", "2", "3"))) == ["duplicate"] * 3


def test_a_single_message_of_a_batch_handler_comes_as_a_list_of_one(shop):
    consumer = shop.consumer(batch=True)
    assert consumer.process(message("1")).outcome is Outcome.PROCESSED
    assert outcomes(consumer.process_many(messages("2"))) == ["processed"]
    assert shop.calls == [["1"], ["2"]]


def test_an_interrupted_batch_is_free_again(shop):
    consumer = shop.consumer(batch=True, max_attempts=1)
    with pytest.raises(KeyboardInterrupt):
        consumer.process_many([message("1"), message("2", "KeyboardInterrupt")])
    assert outcomes(consumer.process_many(messages("1", "2"))) == ["processed"] * 2


# Interrupts


@pytest.mark.parametrize("stop", ["KeyboardInterrupt", "SystemExit"])
def test_an_interrupt_keeps_what_ran_frees_the_rest_and_propagates(shop, stop):
    consumer = shop.consumer(max_attempts=1)
    with pytest.raises(getattr(builtins, stop)):
        consumer.process_many([message("1"), message("2"), message("3", stop), message("4")])
    if shop.transactional:
        assert shop.effects() == {}
    assert ["4"] not in shop.calls
    again = outcomes(consumer.process_many(messages("1", "2", "3", "4")))
    if shop.transactional:
        assert again == ["processed"] * 4, "one transaction, so all of it was undone"
        assert shop.effects() == {"1": 1, "2": 1, "3": 1, "4": 1}
    else:
        assert again == ["duplicate", "duplicate", "processed", "processed"]


def test_an_interrupt_does_not_forgive_a_failure_before_it(leased_shop):
    consumer = leased_shop.consumer(max_attempts=1)
    with pytest.raises(KeyboardInterrupt):
        consumer.process_many([message("1", "ValueError"), message("2", "KeyboardInterrupt"), message("3")])
    assert outcomes(consumer.process_many(messages("1", "2", "3"))) == ["dead", "processed", "processed"]


# Stores that fail


def unreachable(*_):
    raise StoreUnavailableError("gone")


@pytest.mark.parametrize("batch", [False, True])
def test_a_completion_the_store_did_not_take_is_unavailable_and_its_effect_is_not_repeated(
    leased_shop, monkeypatch, batch
):
    checker = leased_shop.checker
    consumer = leased_shop.consumer(batch=batch)
    with monkeypatch.context() as outage:
        outage.setattr(checker, "_complete", unreachable)
        outage.setattr(checker, "_complete_many", unreachable)
        lost = consumer.process_many(messages("1", "2", "3"))
        meanwhile = consumer.process_many(messages("1", "4"))
    assert [(r.outcome, r.action.value, r.retry_after_s > 0) for r in lost] == [
        (Outcome.UNAVAILABLE, "hold", True)
    ] * 3
    assert outcomes(meanwhile) == ["in_progress", "unavailable"]
    assert counters.snapshot()[consumer.name, Event.COMPLETION_NOT_RECORDED] >= 3
    assert outcomes(consumer.process_many(messages("1", "2", "3", "4"))) == ["duplicate"] * 4
    assert leased_shop.effects() == {"1": 1, "2": 1, "3": 1, "4": 1}
    if leased_shop.store.kind != "memory":
        elsewhere = leased_shop.consumer(leased_shop.another_checker())
        assert outcomes(elsewhere.process_many(messages("1", "2", "3"))) == ["duplicate"] * 3


def test_a_group_that_cannot_be_claimed_is_unavailable_and_did_not_run(shop, monkeypatch):
    consumer = shop.consumer(max_attempts=1)
    with monkeypatch.context() as outage:
        outage.setattr(shop.checker, "_claim_many", unreachable)
        results = consumer.process_many(messages("1", "2", "1"))
    assert outcomes(results) == ["unavailable"] * 3
    assert shop.calls == []
    assert outcomes(consumer.process_many(messages("1", "2", "1"))) == ["processed", "processed", "duplicate"]


def test_a_group_whose_commit_did_not_happen_is_unavailable_and_runs_again(transactional_shop, monkeypatch):
    consumer = transactional_shop.consumer(max_attempts=1)
    with monkeypatch.context() as outage:
        outage.setattr(Unit, "commit", lambda unit: lose_connection())
        results = consumer.process_many(messages("1", "2", "3"))
    assert outcomes(results) == ["unavailable"] * 3
    assert transactional_shop.effects() == {}
    assert outcomes(consumer.process_many(messages("1", "2", "3"))) == ["processed"] * 3
    assert transactional_shop.effects() == {"1": 1, "2": 1, "3": 1}


def test_a_group_whose_commit_answer_was_lost_is_found_processed(transactional_shop, monkeypatch):
    consumer = transactional_shop.consumer(max_attempts=1)
    commit = Unit.commit
    with monkeypatch.context() as outage:
        outage.setattr(Unit, "commit", lambda unit: (commit(unit), lose_connection()))
        results = consumer.process_many(messages("1", "2", "3"))
    assert outcomes(results) == ["processed"] * 3
    assert outcomes(consumer.process_many(messages("1", "2", "3"))) == ["duplicate"] * 3
    assert transactional_shop.effects() == {"1": 1, "2": 1, "3": 1}


def lose_connection():
    raise ConnectionResetError("the peer is gone")


# The kill switch


def test_the_kill_switch_runs_every_message_of_a_group(shop, monkeypatch):
    shop.consumer().process_many(messages("done"))
    monkeypatch.setenv("IDEMPOTENT_DISABLED", "all")
    consumer = shop.consumer()
    started = time.monotonic()
    results = consumer.process_many(messages("1", "done", "2", "1"))
    assert outcomes(results) == ["processed"] * 4
    assert shop.effects() == {"done": 2, "1": 2, "2": 1}
    assert time.monotonic() - started < 4, "it waited for a transaction of its own"


# Round trips


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What kind of statements the library sends by itself: an INSERT may begin with WITH or SET STATEMENT."""
    sent: list[str] = []

    def noting(function: Callable) -> Callable:
        def noted(connection, statement, params=(), **options):
            sent.append("INSERT" if "INSERT INTO" in statement else statement.split()[0].upper())
            return function(connection, statement, params, **options)

        return noted

    for name in ("execute", "insert_id", "query"):
        original = getattr(cursor, name)
        for module in [m for n, m in list(sys.modules.items()) if n.startswith("idempotent.")]:
            if getattr(module, name, None) is original:
                monkeypatch.setattr(module, name, noting(original))
    return sent


def hundred(prefix):
    return messages(*(f"{prefix}{number}" for number in range(100)))


def test_a_leased_group_is_one_insert_and_one_update(sql_store, statements):
    consumer = Shop(sql_store, "leased").consumer()
    consumer.process_many(hundred("warm"))
    statements.clear()
    assert set(outcomes(consumer.process_many(hundred("a")))) == {"processed"}
    fresh = ["INSERT", "UPDATE"]
    assert [word for word in statements if word != "SELECT"] == fresh, statements
    assert statements.count("SELECT") <= 1, "one ownership read, where there is no RETURNING"
    statements.clear()
    assert set(outcomes(consumer.process_many(hundred("a")))) == {"duplicate"}
    assert [word for word in statements if word != "SELECT"] == ["INSERT"]
    assert statements.count("SELECT") <= 1


@pytest.mark.parametrize("savepoints", [False, True])
def test_a_transactional_group_is_one_insert_and_one_commit(sql_store, statements, savepoints):
    engine = sql_store.engine()
    checker = sql_store.transactional(engine, savepoints=savepoints)
    committed = []
    sa.event.listen(engine, "commit", committed.append)

    @Registry().consumer("orders", checker=checker)
    def consumer(message, session: Session):
        pass

    consumer.process_many(hundred("warm"))
    statements.clear()
    committed.clear()
    assert set(outcomes(consumer.process_many(hundred("a")))) == {"processed"}
    assert [word for word in statements if word in ("INSERT", "UPDATE", "DELETE")] == ["INSERT"], statements
    # BEGIN IMMEDIATE on SQLite; reading the owners back where there is no RETURNING.
    assert len(statements) <= 2, statements
    assert len(committed) == 1


def test_a_group_of_batches_of_one_owner_is_stored_as_a_group(leased_shop):
    """So that a process killed inside it burns no attempt of those that never ran."""
    seen = []
    make = Registry().consumer("orders", checker=leased_shop.checker)

    @make
    def consumer(message):
        record = leased_shop.checker.admin().get(consumer.key_of(message.id))
        seen.append(record.status)

    consumer.process_many(messages("1", "2"))
    assert seen == [KeyStatus.IN_PROGRESS_GROUP] * 2
