"""Suspended lives when the store fails, a key is locked, a call hangs, or the worker stops."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence

import pytest

from idempotent import Message, Outcome
from idempotent.adapters import MemoryBroker
from idempotent.checkers.batching import batcher
from idempotent.claims import ClaimRequest, Verdict
from idempotent.errors import StoreError
from idempotent.keys import KeySpace
from idempotent.worker.handlers import threads
from tests.checkers.batching.rounds import Calls, held, request
from tests.checkers.batching.test_locked_rows import locked
from tests.support.hooks import answering, unreachable
from tests.support.logs import logged
from tests.support.stores import Store
from tests.worker.running import SUBJECT, publish, until
from tests.worker.suspended.stage import Crowd, Gate, completions_wait

IDS = [f"m{number}" for number in range(20)]


def test_a_drain_waits_for_suspended_lives(shared_store: Store, broker: MemoryBroker) -> None:
    crowd = Crowd(shared_store.leased(), broker)
    publish(broker, *IDS)
    gate = Gate()
    crowd.gates = dict.fromkeys(IDS[:4], gate)
    with completions_wait(crowd.checker) as completing:
        running = crowd.run(4)
        gate.until(*IDS[:4])
        gate.open()
        completing.until("")
        # The claims of four more wait for the next round.
        until(lambda: len(crowd.effects) == 4 and len(running.worker._pool.running) == 8)
        running.worker.stop()
        time.sleep(0.2)
        assert running.thread.is_alive()
        assert not crowd.results
    summary = running.join().summary
    assert (summary.settled, summary.abandoned, summary.unrecorded) == (8, 0, 0)
    assert crowd.effects == Counter(crowd.settled) == Counter(IDS[:8])
    assert not [each for each in threading.enumerate() if each.name.startswith("idempotent-handler")]


def test_the_log_names_suspended_lives_that_outlast_the_drain(
    shared_store: Store, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    crowd = Crowd(shared_store.leased(), broker)
    publish(broker, "a", "b")
    gate = Gate()
    crowd.gates = {"a": gate, "b": gate}
    with completions_wait(crowd.checker) as completing:
        running = crowd.run(4, drain_timeout_s=0.2)
        gate.until("a", "b")
        gate.open()
        completing.until("")
        running.worker.stop()
        assert running.join().summary.abandoned == 2
        (said,) = [vars(record) for record in logged(caplog, "drain_timed_out")]
        assert said["running"] == 2
        assert {key.rpartition(":")[2] for key in said["keys"]} == {"a", "b"}
    until(
        lambda: all(
            crowd.consumer.process(Message(SUBJECT, id=name)).outcome is Outcome.DUPLICATE for name in "ab"
        )
    )
    until(lambda: not [each for each in threading.enumerate() if each.name.startswith("idempotent-handler")])
    assert crowd.effects == Counter("ab")


def test_completions_that_the_store_does_not_record_are_retried_and_their_handlers_not_run_again(
    shared_store: Store, broker: MemoryBroker
) -> None:
    crowd = Crowd(shared_store.leased(), broker)
    publish(broker, *IDS)
    with answering(crowd.checker, _complete=unreachable, _complete_many=unreachable):
        running = crowd.run(8)
        until(lambda: crowd.checker.protocol.unrecorded == 20)
        assert not crowd.results
    summary = running.join().summary
    assert crowd.effects == Counter(IDS)
    assert dict(summary.outcomes) == {Outcome.DUPLICATE: 20}


def test_claims_that_the_store_does_not_answer_are_made_again(
    shared_store: Store, broker: MemoryBroker
) -> None:
    crowd = Crowd(shared_store.leased(), broker)
    asked = set()

    def note(requests: ClaimRequest | Sequence[ClaimRequest]) -> None:
        for one in [requests] if isinstance(requests, ClaimRequest) else requests:
            asked.add(one.key.text.rpartition(":")[2])
        unreachable()

    publish(broker, *IDS)
    with answering(crowd.checker, _claim=note, _claim_many=note):
        running = crowd.run(8)
        until(lambda: asked.issuperset(IDS))  # and of trials, because the store does not answer
        assert not crowd.effects
    assert running.join().summary[Outcome.PROCESSED] == 20
    assert crowd.effects == Counter(IDS)


def test_a_locked_key_holds_up_no_other(
    sql_store: Store, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    if sql_store.kind == "sqlite":
        pytest.skip("SQLite locks its file")
    crowd = Crowd(sql_store.leased(), broker)
    gate = Gate()
    crowd.gates = {"m0": gate, "m1": gate}
    publish(broker, *IDS)
    running = crowd.run(4)
    gate.until("m0", "m1")
    with locked(sql_store, "m0", KeySpace(SUBJECT, "default")):
        gate.open()
        until(lambda: set(IDS[1:]) <= set(crowd.settled))
        publish(broker, "later")
        until(lambda: "later" in crowd.settled)
    running.join()
    assert crowd.effects == Counter([*IDS, "later"])
    assert set(crowd.settled) == {*IDS, "later"}
    until(lambda: not crowd.checker.protocol.unrecorded)
    for name in crowd.effects:
        assert crowd.consumer.process(Message(SUBJECT, id=name)).outcome is Outcome.DUPLICATE
    assert not logged(caplog, "completion_lost")


def test_lapsed_keys_are_taken_over(shared_store: Store, broker: MemoryBroker) -> None:
    crowd = Crowd(shared_store.leased(lease_s=600.0), broker)
    for name in IDS[:5]:
        claim = crowd.checker.lone.claim(ClaimRequest(crowd.consumer.key_of(name))).claim
        assert claim is not None
        crowd.checker.protocol.abandon(claim)
    shared_store.age(700.0)
    publish(broker, *IDS)
    assert crowd.run(8).join().summary[Outcome.PROCESSED] == 20
    assert crowd.effects == Counter(IDS)
    assert crowd.counting.outcomes[Outcome.IN_PROGRESS] == 0


def test_an_exit_in_a_handler_ends_the_worker_and_leaves_no_claim_of_a_suspended_life(
    shared_store: Store, broker: MemoryBroker
) -> None:
    crowd = Crowd(shared_store.leased(), broker)
    publish(broker, *IDS)
    gate = Gate()
    crowd.gates = {IDS[0]: gate}

    @crowd.registry.consumer("exits", checker=crowd.checker)
    def leave(_message: Message) -> None:
        gate.until(IDS[0])
        raise SystemExit(3)

    publish(broker, "last", subject="exits")
    with completions_wait(crowd.checker) as completing:
        running = crowd.run(4)
        completing.until("")
        until(lambda: running.worker._stopping)
        gate.open()
    assert isinstance(running.join().error, SystemExit)
    assert crowd.effects == Counter(crowd.settled)
    left = [name for name in IDS if name not in crowd.settled]
    assert left
    for name in left:
        assert crowd.consumer.process(Message(SUBJECT, id=name)).outcome is Outcome.PROCESSED


def test_a_caller_outside_the_worker_that_is_interrupted_leaves_none_behind(
    shared_store: Store, broker: MemoryBroker
) -> None:
    crowd, calls = Crowd(shared_store.leased(), broker), Calls()
    publish(broker, *IDS)
    with held(crowd.checker, KeyboardInterrupt()) as first:
        calls.start("outside", crowd.checker.lone.claim, request("outside"))
        assert first.entered.wait(20)
        running = crowd.run(8)
        first.until_waiting(8)
        first.go.set()
        assert isinstance(calls.join()["outside"], KeyboardInterrupt)
    assert running.join().summary[Outcome.PROCESSED] == 20
    assert crowd.effects == Counter(IDS)


def test_a_batch_that_ends_with_an_exit_loses_no_suspended_life(
    shared_store: Store, broker: MemoryBroker
) -> None:
    crowd, calls = Crowd(shared_store.leased(), broker), Calls()
    publish(broker, *IDS)
    raised = threading.Event()

    def interrupted(requests):  # type: ignore[no-untyped-def]
        if not raised.is_set():
            raised.set()
            raise SystemExit
        return crowd.checker._claim_many(requests)

    with held(crowd.checker) as first, answering(crowd.checker, _claim=first.claim, _claim_many=interrupted):
        calls.start("first", crowd.checker.lone.claim, request("first"))
        assert first.entered.wait(20)
        calls.start("beside", crowd.checker.lone.claim, request("beside"))
        first.until_waiting(1)
        running = crowd.run(8)
        first.until_waiting(9)
        first.go.set()
        assert isinstance(calls.join()["beside"], StoreError)
        assert running.join().summary[Outcome.PROCESSED] == 20
    assert crowd.effects == Counter(IDS)


def test_a_call_that_hangs_is_replaced(
    shared_store: Store, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batcher, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(threads, "_LOOK_S", 0.1)
    crowd, calls = Crowd(shared_store.leased(), broker), Calls()
    crowd.gates = {"slow": (gate := Gate())}
    publish(broker, "slow")
    running = crowd.run(8)
    gate.until("slow")
    with held(crowd.checker) as first:
        calls.start("first", crowd.checker.lone.claim, request("first"))
        assert first.entered.wait(20)
        publish(broker, *IDS)
        until(lambda: set(crowd.settled) == set(IDS))
        gate.open()
        assert running.join().summary[Outcome.PROCESSED] == 21
        first.go.set()
        assert calls.join()["first"].verdict is Verdict.ACQUIRED


def test_a_checker_that_is_closed_while_lives_are_suspended_answers_them(
    shared_store: Store, broker: MemoryBroker
) -> None:
    crowd, calls = Crowd(shared_store.leased(), broker), Calls()
    publish(broker, *IDS)
    with held(crowd.checker) as first:
        calls.start("first", crowd.checker.lone.claim, request("first"))
        assert first.entered.wait(20)
        running = crowd.run(8)
        first.until_waiting(8)
        calls.start("close", crowd.checker.close)
        until(lambda: len(running.worker._holds._heap) >= 8)
        first.go.set()
        assert calls.join()["first"].verdict is Verdict.ACQUIRED
    assert running.join().summary[Outcome.PROCESSED] == 20
    assert crowd.effects == Counter(IDS)
