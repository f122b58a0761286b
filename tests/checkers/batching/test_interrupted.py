"""Callers that are interrupted, stores that die, checkers that close, processes that fork."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import time

import pytest

from idempotent import Message, Outcome, Registry
from idempotent.checkers.batching import batcher
from idempotent.claims import Verdict
from idempotent.errors import StoreError, StoreUnavailableError
from tests.checkers.batching.rounds import Calls, held, request, until
from tests.support.hooks import answering


def test_a_caller_that_is_interrupted_lets_the_next_begin(shared_store):
    checker, calls = shared_store.leased(), Calls()
    with held(checker, KeyboardInterrupt()) as first:
        calls.start("leader", checker.lone.claim, request("leader"))
        assert first.entered.wait(20)
        for number in range(5):
            calls.start(f"k{number}", checker.lone.claim, request(f"k{number}"))
        first.until_waiting(5)
        first.go.set()
        answers = calls.join()
    assert isinstance(answers.pop("leader"), KeyboardInterrupt)
    assert {decision.verdict for decision in answers.values()} == {Verdict.ACQUIRED}


def test_an_exit_in_a_round_answers_everybody(shared_store):
    checker, calls = shared_store.leased(), Calls()

    def interrupted(_):
        raise KeyboardInterrupt

    with held(checker) as first:
        calls.start("first", checker.lone.claim, request("first"))
        assert first.entered.wait(20)
        for number in range(5):
            calls.start(f"k{number}", checker.lone.claim, request(f"k{number}"))
        first.until_waiting(5)
        with answering(checker, _claim_many=interrupted):
            first.go.set()
            answers = calls.join()
    del answers["first"]
    assert [type(answer) for answer in answers.values()] == [StoreError] * 5
    assert checker.lone.claim(request("later")).claim
    assert not checker.combiner.waiting


def raise_in(thread, error):
    """An exception of another thread, as those that limit the time of a handler raise it."""
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error)) == 1


def test_an_exception_in_a_waiting_thread_releases_the_claim_that_its_round_acquires(shared_store):
    checker, calls = shared_store.leased(), Calls()
    idents = []

    def waiting(name):
        idents.append(threading.get_ident())
        return checker.lone.claim(request(name))

    with held(checker) as first:
        calls.start("first", checker.lone.claim, request("first"))
        assert first.entered.wait(20)
        calls.start("next leader", checker.lone.claim, request("next leader"))
        first.until_waiting(1)
        calls.start("interrupted", waiting, "interrupted")
        first.until_waiting(2)
        raise_in(idents[0], TimeoutError)
        first.go.set()
        answers = calls.join()
    assert answers["next leader"].claim
    assert isinstance(answers["interrupted"], TimeoutError)
    until(lambda: checker.lone.claim(request("interrupted")).claim)


def test_an_exception_in_the_first_that_waits_lets_the_next_begin(shared_store):
    checker, calls = shared_store.leased(), Calls()
    idents = []

    def waiting(name):
        idents.append(threading.get_ident())
        return checker.lone.claim(request(name))

    with held(checker) as first:
        calls.start("first", checker.lone.claim, request("first"))
        assert first.entered.wait(20)
        calls.start("interrupted", waiting, "interrupted")
        first.until_waiting(1)
        calls.start("after it", checker.lone.claim, request("after it"))
        first.until_waiting(2)
        raise_in(idents[0], TimeoutError)
        first.go.set()
        answers = calls.join()
    assert answers["after it"].claim
    assert isinstance(answers["interrupted"], TimeoutError)
    until(lambda: checker.lone.claim(request("interrupted")).claim)


def test_a_completion_whose_thread_is_interrupted_while_it_waits_is_recorded(shared_store):
    checker, calls = shared_store.leased(), Calls()
    done = checker.lone.claim(request("done")).claim
    idents = []

    def completing():
        idents.append(threading.get_ident())
        return checker.lone.complete(done, b"1")

    with held(checker) as first:
        calls.start("first", checker.lone.claim, request("first"))
        assert first.entered.wait(20)
        calls.start("interrupted", completing)
        first.until_waiting(1)
        raise_in(idents[0], TimeoutError)
        first.go.set()
        assert isinstance(calls.join()["interrupted"], TimeoutError)
    until(lambda: checker.lone.claim(request("done")).verdict is Verdict.DUPLICATE)


@pytest.mark.parametrize("kind", ["private_redis", "private_mariadb", "private_postgres"])
def test_a_store_that_dies_gives_every_waiting_call_an_error_and_then_works_again(request, kind):
    from idempotent.checkers import checker_from_url
    from idempotent.migrations import upgrade

    options = ("--appendonly", "yes") if kind == "private_redis" else ()
    server = request.getfixturevalue(kind)(*options)
    if kind != "private_redis":
        upgrade(server.url)
    checker, calls, ran = checker_from_url(server.url), Calls(), []

    @Registry().consumer("orders", checker=checker)
    async def handle(message: Message) -> None:
        ran.append(message.id)

    async def tasks():
        return await asyncio.gather(*(handle.process(Message("orders", id=f"t{n}")) for n in range(500)))

    with held(checker) as first:
        calls.start("first", checker.lone.claim, of("first"))
        assert first.entered.wait(20)
        for number in range(300):
            calls.start(f"k{number}", checker.lone.claim, of(f"k{number}"))
        calls.start("tasks", asyncio.run, tasks())
        first.until_waiting(800)
        server.kill()
        first.go.set()
        answers = calls.join()
    assert {result.outcome for result in answers.pop("tasks")} == {Outcome.UNAVAILABLE}
    assert {type(answer) for answer in answers.values()} == {StoreUnavailableError}
    assert not ran
    server.start()
    assert {result.outcome for result in asyncio.run(tasks())} == {Outcome.PROCESSED}
    assert sorted(ran) == sorted(f"t{number}" for number in range(500))
    checker.close()


of = request


def test_close_finishes_completions_and_refuses_claims_that_wait(shared_store):
    checker, calls = shared_store.leased(), Calls()
    claims = [checker.lone.claim(request(f"done {number}")).claim for number in range(5)]
    with held(checker) as first:
        calls.start("first", checker.lone.claim, request("first"))
        assert first.entered.wait(20)
        for number, claim in enumerate(claims):
            calls.start(f"done {number}", checker.lone.complete, claim)
            calls.start(f"claim {number}", checker.lone.claim, request(f"claim {number}"))
        first.until_waiting(10)
        closing = threading.Thread(target=checker.close)
        closing.start()
        first.until_waiting(5)
        closing.join(0.3)
        assert closing.is_alive()
        first.go.set()
        answers = calls.join()
        closing.join(20)
    assert not closing.is_alive()
    assert all(answers[f"done {number}"] is True for number in range(5))
    assert {type(answers[f"claim {number}"]) for number in range(5)} == {StoreUnavailableError}
    assert answers["first"].claim


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_forgets_the_waiters_of_its_parent(shared_store):
    checker, calls = shared_store.leased(), Calls()
    with held(checker) as first:
        calls.start("first", checker.lone.claim, request("first"))
        assert first.entered.wait(20)
        calls.start("second", checker.lone.claim, request("second"))
        first.until_waiting(1)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                waiting = checker.combiner.waiting
                claim = checker.lone.claim(request("of the child")).claim
                code = 0 if claim and checker.lone.complete(claim) and not waiting else 2
            finally:
                os._exit(code)
        end = time.monotonic() + 20
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
            time.sleep(0.01)
        if ended == (0, 0):
            os.kill(child, 9)
            os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(ended[1]) == 0
        assert ended != (0, 0), "the child waits for a leader that it does not have"
        first.go.set()
        answers = calls.join()
    assert answers["first"].claim
    assert answers["second"].claim
    assert checker.lone.claim(request("of the child")).verdict is Verdict.DUPLICATE


def test_an_error_of_the_store_is_an_object_of_its_own_for_each_caller(shared_store):
    checker, calls = shared_store.leased(), Calls()

    def gone(_):
        raise StoreUnavailableError("gone")

    with held(checker) as first:
        calls.start("first", checker.lone.claim, request("first"))
        assert first.entered.wait(20)
        for number in range(3):
            calls.start(f"k{number}", checker.lone.claim, request(f"k{number}"))
        first.until_waiting(3)
        with answering(checker, _claim_many=gone):
            first.go.set()
            answers = calls.join()
    errors = [answers[f"k{number}"] for number in range(3)]
    assert {str(error) for error in errors} == {"gone"}
    assert all(isinstance(error, StoreError) for error in errors)
    assert len({id(error) for error in errors}) == 3


def test_a_call_that_hangs_is_replaced_and_holds_up_no_other(shared_store, monkeypatch):
    monkeypatch.setattr(batcher, "_PATIENCE_S", 0.2)
    checker, calls = shared_store.leased(), Calls()
    with held(checker) as first:
        calls.start("hangs", checker.lone.claim, request("hangs"))
        assert first.entered.wait(20)
        for number in range(5):
            calls.start(f"k{number}", checker.lone.claim, request(f"k{number}"))
        until(lambda: len(calls.answers) == 5)
        monkeypatch.setattr(batcher, "_PATIENCE_S", 600.0)
        calls.start("no longer behind it", checker.lone.claim, request("no longer behind it"))
        until(lambda: "no longer behind it" in calls.answers)
        assert "hangs" not in calls.answers
        first.go.set()
        answers = calls.join()
    assert all(decision.claim for decision in answers.values())
    assert checker.lone.claim(request("later")).claim
