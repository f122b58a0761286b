"""What goes together in a round, and that one key does not spoil it for the others."""

from __future__ import annotations

import threading
import time

import pytest

from idempotent.checkers.batching import combiner
from idempotent.claims import Completion, KeyStatus, Lapsed, Verdict
from idempotent.errors import StoreBusyError, StoreError
from tests.checkers.batching.rounds import SPACE, Calls, held, request, until
from tests.support.hooks import answering


def test_calls_that_arrive_during_a_statement_go_together_in_the_next_one(shared_store):
    checker, calls = shared_store.leased(), Calls()
    with held(checker) as first:
        calls.start("first", checker.lone.claim, request("first"))
        assert first.entered.wait(20)
        for number in range(20):
            calls.start(f"k{number}", checker.lone.claim, request(f"k{number}"))
        first.until_waiting(20)
        first.go.set()
        answers = calls.join()
    assert {decision.verdict for decision in answers.values()} == {Verdict.ACQUIRED}
    assert first.sent == [1, 20]
    assert {name: str(decision.claim.key.text) for name, decision in answers.items()} == {
        name: SPACE.key(name).text for name in answers
    }
    assert all(checker.lone.complete(decision.claim) for decision in answers.values())


def test_few_calls_are_made_each_by_itself_and_more_wait_for_a_round(shared_store, monkeypatch):
    """SQLite writes one transaction at a time: a second call beside the first would wait for its file."""
    monkeypatch.setattr(combiner, "MOST_DIRECT", 3)
    direct = 1 if shared_store.kind == "sqlite" else 3
    checker, calls = shared_store.leased(), Calls()
    inside, go, rounds = [], threading.Event(), []

    def claim(asked):
        inside.append(asked)
        assert go.wait(20)
        return checker._claim(asked)

    def claim_many(asked):
        rounds.append(len(asked))
        return checker._claim_many(asked)

    with answering(checker, _claim=claim, _claim_many=claim_many):
        for number in range(7):
            calls.start(f"k{number}", checker.lone.claim, request(f"k{number}"))
        until(lambda: len(inside) == direct and checker.combiner.waiting == 7 - direct)
        go.set()
        answers = calls.join()
    # One that finds its place in the table locked by another goes again, alone.
    assert (len({asked.key for asked in inside}), rounds[0]) == (direct, 7 - direct)
    assert all(decision.claim for decision in answers.values())
    assert not checker.combiner.waiting


def test_a_key_is_in_a_round_once_and_its_second_request_is_answered_after_the_first(shared_store):
    checker, calls = shared_store.leased(), Calls()
    with held(checker) as first:
        calls.start("first", checker.lone.claim, request("first"))
        assert first.entered.wait(20)
        for number in range(4):
            calls.start(f"same {number}", checker.lone.claim, request("same"))
            first.until_waiting(number + 1)
        calls.start("other", checker.lone.claim, request("other"))
        first.until_waiting(5)
        first.go.set()
        answers = calls.join()
    assert first.sent[:2] == [1, 2]
    same = [answers[f"same {number}"] for number in range(4)]
    assert [decision.verdict for decision in same] == [Verdict.ACQUIRED, *[Verdict.IN_PROGRESS] * 3]
    assert answers["other"].claim


def test_a_key_that_is_done_is_a_duplicate_in_a_round(shared_store):
    checker, calls = shared_store.leased(), Calls()
    assert checker.lone.complete(checker.lone.claim(request("done")).claim, b"1")
    with held(checker) as first:
        calls.start("first", checker.lone.claim, request("first"))
        assert first.entered.wait(20)
        for name in ("done", "fresh", "new"):
            calls.start(name, checker.lone.claim, request(name))
        first.until_waiting(3)
        first.go.set()
        answers = calls.join()
    assert (answers["done"].verdict, answers["done"].result) == (Verdict.DUPLICATE, b"1")
    assert answers["fresh"].claim
    assert answers["new"].claim


def test_a_consumer_that_parks_or_asks_claims_alone(shared_store):
    checker, calls = shared_store.leased(), Calls()
    with held(checker) as first:
        calls.start("first", checker.lone.claim, request("first"))
        assert first.entered.wait(20)
        parks = request("parks", status=KeyStatus.IN_PROGRESS_PARK, on_lapsed=Lapsed.PARK)
        assert checker.lone.claim(parks).claim
        first.go.set()
        assert calls.join()["first"].claim


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True])
def test_one_locked_key_does_not_stall_the_others(sql_store, alone):
    """A claim that waits for the lock takes three seconds; 40 rounds with it in front would take two minutes."""
    if sql_store.kind == "sqlite":
        pytest.skip("SQLite locks its file")
    checker, calls = sql_store.leased(), Calls()
    holder = sql_store.transactional()
    locked = holder.protocol.claim(request("locked"))
    try:
        if alone:
            calls.start("locked", checker.lone.claim, request("locked"))
            time.sleep(0.05)
        else:
            with held(checker) as first:
                calls.start("first", checker.lone.claim, request("first"))
                assert first.entered.wait(20)
                calls.start("locked", checker.lone.claim, request("locked"))
                for number in range(30):
                    calls.start(f"k{number}", checker.lone.claim, request(f"k{number}"))
                first.until_waiting(31)
                first.go.set()
                began = time.monotonic()
                while len(calls.answers) < 31 and time.monotonic() - began < 20:
                    time.sleep(0.01)
                assert "locked" not in calls.answers
        for number in range(40):
            assert checker.lone.claim(request(f"later {number}")).claim
        assert "locked" not in calls.answers
        answers = calls.join()
    finally:
        holder.protocol.release(locked.claim)
    assert answers.pop("locked").verdict is Verdict.IN_PROGRESS
    assert {decision.verdict for decision in answers.values()} <= {Verdict.ACQUIRED}


def refuse(store, name):
    """Let the store take no key with this name."""
    if store.kind == "sqlite":
        change = (
            f"CREATE TRIGGER refuse_{store.table} BEFORE INSERT ON {store.table} WHEN NEW.k LIKE '%{name}%'"
            " BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
    else:
        change = f"ALTER TABLE {store.table} ADD CONSTRAINT refused CHECK (k NOT LIKE '%%{name}%%')"
    with store.admin_engine.begin() as connection:
        connection.exec_driver_sql(change)


def test_a_key_that_the_database_refuses_does_not_take_its_round_along(altered_sql_store):
    checker = altered_sql_store.leased()
    refuse(altered_sql_store, "poison")
    others_are_claimed(checker)


def test_a_value_that_is_no_key_does_not_take_its_round_along(request):
    from contextlib import contextmanager

    from tests.support.stores import open_store

    with contextmanager(open_store)("redis", request) as store:
        checker = store.leased()
        checker.store.client.set(checker.store.names.name(SPACE.key("poison").hash), b"something else")
        others_are_claimed(checker)


def others_are_claimed(checker):
    calls = Calls()
    with held(checker) as first:
        calls.start("first", checker.lone.claim, request("first"))
        assert first.entered.wait(20)
        for name in ["poison", *map(str, range(50))]:
            calls.start(name, checker.lone.claim, request(name))
        first.until_waiting(51)
        first.go.set()
        answers = calls.join()
    assert isinstance(answers.pop("poison"), StoreError)
    assert all(decision.claim for decision in answers.values())
    assert len(first.sent) < 20, first.sent  # halves
    claims = [decision.claim for decision in answers.values()]
    assert all(checker.protocol.complete_many([Completion(claim) for claim in claims]))


def test_lapsed_keys_are_left_by_a_round_and_taken_over_one_by_one(shared_store):
    checker, calls = shared_store.leased(lease_s=600.0), Calls()
    for name in ("lapsed", "lapsed too"):
        checker.protocol.abandon(checker.lone.claim(request(name)).claim)
    shared_store.age(700.0)
    with held(checker) as first:
        calls.start("first", checker.lone.claim, request("first"))
        assert first.entered.wait(20)
        for name in ("lapsed", "lapsed too", "fresh"):
            calls.start(name, checker.lone.claim, request(name))
        first.until_waiting(3)
        first.go.set()
        answers = calls.join()
    assert answers["fresh"].verdict is Verdict.ACQUIRED
    for name in ("lapsed", "lapsed too"):
        assert (answers[name].verdict, answers[name].deaths) == (Verdict.IN_PROGRESS, 1)
        taken = checker.lone.claim(request(name, on_lapsed=Lapsed.TAKE_OVER))
        assert (taken.verdict, taken.claim.deaths) == (Verdict.ACQUIRED, 1)


def test_completions_of_a_round_that_finds_the_store_busy_are_made_one_by_one(shared_store):
    checker, calls = shared_store.leased(), Calls()
    claims = {name: checker.lone.claim(request(name)).claim for name in map(str, range(5))}

    def busy(_):
        raise StoreBusyError

    with held(checker) as first:
        calls.start("first", checker.lone.claim, request("first"))
        assert first.entered.wait(20)
        for name, claim in claims.items():
            calls.start(name, checker.lone.complete, claim)
        first.until_waiting(5)
        with answering(checker, _complete_many=busy):
            first.go.set()
            answers = calls.join()
    assert [answers[name] for name in claims] == [True] * 5
    assert not checker.protocol.unrecorded


def test_completions_of_a_round_are_recorded_with_their_results(shared_store):
    checker, calls = shared_store.leased(), Calls()
    claims = {name: checker.lone.claim(request(name)).claim for name in map(str, range(20))}
    gone = claims.pop("7")
    checker.protocol.release(gone)
    with held(checker) as first:
        calls.start("first", checker.lone.claim, request("first"))
        assert first.entered.wait(20)
        for name, claim in claims.items():
            calls.start(name, checker.lone.complete, claim, name.encode())
        calls.start("7", checker.lone.complete, gone)
        first.until_waiting(20)
        first.go.set()
        answers = calls.join()
    del answers["first"]
    assert answers == {name: name != "7" for name in answers}
    assert [checker.lone.claim(request(name)).result for name in claims] == [name.encode() for name in claims]
