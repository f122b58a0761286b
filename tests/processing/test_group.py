"""What `process_many` promises: one outcome for each message, in its place, whatever becomes of its neighbours."""

from __future__ import annotations

import builtins
import time
from dataclasses import replace

import pytest

from idempotent import Backoff
from idempotent.errors import DeadKeyError, FingerprintMismatchError, MissingKeyError
from idempotent.message import Position
from tests.processing.shop import message, messages, outcomes

pytestmark = pytest.mark.sample(3)


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
    """A group leaves a lapsed key; it is claimed alone, so its lapse counts for that message only."""
    lapsing = shop.store.leased()
    if shop.store.kind == "memory":
        shop.checker = lapsing
    consumer = shop.consumer(max_attempts=3)
    claim = lapsing.protocol.claim(consumer.binding.requests.of(message("lapsed"))).claim
    lapsing.protocol.abandon(claim)
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
        lapsing.protocol.abandon(lapsing.protocol.claim(consumer.binding.requests.of(left)).claim)
    shop.store.age(3600)
    assert outcomes(consumer.process_many(in_order)) == ["processed"] * 4
    assert [name for call in shop.calls for name in call] == ["0", "1", "2", "3"]


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


def test_the_kill_switch_runs_every_message_of_a_group(shop, monkeypatch):
    shop.consumer().process_many(messages("done"))
    monkeypatch.setenv("IDEMPOTENT_DISABLED", "all")
    consumer = shop.consumer()
    started = time.monotonic()
    results = consumer.process_many(messages("1", "done", "2", "1"))
    assert outcomes(results) == ["processed"] * 4
    assert shop.effects() == {"done": 2, "1": 2, "2": 1}
    assert time.monotonic() - started < 4, "it waited for a transaction of its own"
