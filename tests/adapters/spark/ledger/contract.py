"""What every ledger promises, whatever its store."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest

from idempotent.adapters.spark.ledger import (
    ClaimState,
    Hold,
    Ledger,
    OnConflict,
    Owner,
    RunClaims,
    RunRef,
    RunState,
    Verdict,
)
from idempotent.errors import (
    ClaimsExpiredError,
    ConfigurationError,
    RunConflictError,
    RunFencedError,
    RunInputChangedError,
    StoreReplacedError,
)
from tests.adapters.spark.ledger.ledgers import Place, open_place

LONG_S = 300.0
SHORT_S = 0.05
A, B = b"a" * 16, b"b" * 16


def keys(count: int) -> list[bytes]:
    return [os.urandom(20) for _ in range(count)]


class LedgerContract:
    kind: ClassVar[str]
    place: Place
    ledger: Ledger

    @pytest.fixture(autouse=True)
    def _place(self, request: pytest.FixtureRequest) -> Iterator[None]:
        with contextmanager(open_place)(self.kind, request) as self.place:
            self.ledger = self.place.ledger()
            yield

    def begin(self, run_id: str = "r1", lease_s: float = LONG_S, **options) -> RunRef:
        return self.ledger.begin("orders", run_id, lease_s=lease_s, **options).ref

    def state(self, ref: RunRef) -> RunState:
        return self.ledger.state_of([ref.token])[ref.token]

    def committed(self, run_id: str, hashes: list[bytes]) -> RunRef:
        ref = self.begin(run_id)
        assert set(self.claims(ref).decide(hashes)) == {Verdict.NEW}
        self.ledger.prepare(ref)
        self.ledger.commit(ref)
        return ref

    def lapsed(self, run_id: str = "dead") -> RunRef:
        ref = self.begin(run_id, lease_s=SHORT_S)
        time.sleep(2 * SHORT_S)
        return ref

    def claims(self, ref: RunRef, on_conflict: OnConflict = OnConflict.FAIL, **options) -> RunClaims:
        return RunClaims(self.ledger, ref, on_conflict=on_conflict, **options)


class RunsContract(LedgerContract):
    def test_a_run_is_begun_once_and_then_resumed(self):
        first = self.ledger.begin("orders", "r1", lease_s=LONG_S)
        again = self.ledger.begin("orders", "r1", lease_s=LONG_S)
        assert (first.state, first.epoch, first.ref.generation) == (RunState.OPEN, 1, 1)
        assert (again.ref, again.state, again.epoch) == (first.ref, RunState.OPEN, 2)
        assert 0 < first.ref.token < 2**63
        assert again.began_at_us == first.began_at_us <= again.now_us < again.lease_until_us

    def test_runs_of_other_names_and_consumers_are_others(self):
        named = [("orders", "r1"), ("orders", "R1"), ("orders", "r1 "), ("bills", "r1"), ("orders:r1", "")]
        tokens = {self.ledger.begin(*names, lease_s=LONG_S).ref.token for names in named}
        assert len(tokens) == len(named)

    @pytest.mark.parametrize("name", ["é😀 " * 200, "a\0b", "x" * 10_000, ""])
    def test_any_text_names_a_run(self, name):
        ref = self.ledger.begin(name, name, lease_s=LONG_S).ref
        row = self.ledger.read(name, name)
        assert row is not None
        assert row.ref == ref == RunRef(name, name, 1, ref.token)

    def test_a_run_never_begun_is_not_there(self):
        assert self.ledger.read("orders", "r1") is None

    @pytest.mark.parametrize("prepared", [False, True])
    def test_a_prepared_or_committed_run_is_resumed_as_it_is(self, prepared):
        ref = self.begin()
        self.ledger.prepare(ref)
        if not prepared:
            self.ledger.commit(ref, "s3://out/r1")
        row = self.ledger.begin("orders", "r1", lease_s=LONG_S)
        assert row.ref == ref
        assert row.state is (RunState.PREPARED if prepared else RunState.COMMITTED)
        assert row.output_ref == (None if prepared else "s3://out/r1")

    def test_after_an_abort_the_next_generation_has_another_token(self):
        first = self.begin()
        self.ledger.abort(first)
        second = self.ledger.begin("orders", "r1", lease_s=LONG_S)
        assert (second.ref.generation, second.epoch, second.state) == (2, 1, RunState.OPEN)
        assert second.ref.token != first.token
        assert self.state(first) is RunState.ABORTED
        assert self.ledger.read("orders", "r1").ref == second.ref

    def test_other_input_under_the_same_name_is_refused(self):
        self.begin(fingerprint=b"\0one")
        assert self.ledger.read("orders", "r1").fingerprint == b"\0one"
        self.begin(fingerprint=b"\0one")
        self.begin()
        with pytest.raises(RunInputChangedError, match="r1"):
            self.begin(fingerprint=b"two")

    def test_a_fingerprint_that_comes_later_is_kept(self):
        self.begin()
        self.begin(fingerprint=b"one")
        with pytest.raises(RunInputChangedError):
            self.begin(fingerprint=b"two")

    def test_a_new_generation_may_have_other_input(self):
        self.ledger.abort(self.begin(fingerprint=b"one"))
        assert self.begin(fingerprint=b"two").generation == 2

    @pytest.mark.parametrize("lease_s", [0, -1, 1000, float("nan")])
    def test_a_lease_that_cannot_work_is_refused(self, lease_s):
        with pytest.raises((ConfigurationError, ValueError)):
            self.begin(lease_s=lease_s)

    def test_from_open_through_prepared_to_committed_and_each_step_twice(self):
        ref = self.begin()
        for _ in range(2):
            self.ledger.prepare(ref)
            assert self.state(ref) is RunState.PREPARED
        for _ in range(2):
            self.ledger.commit(ref, "out")
            assert self.state(ref) is RunState.COMMITTED
        self.ledger.prepare(ref)
        assert self.state(ref) is RunState.COMMITTED
        assert self.ledger.read("orders", "r1").output_ref == "out"

    def test_an_open_run_cannot_be_committed(self):
        ref = self.begin()
        with pytest.raises(RunFencedError, match="OPEN"):
            self.ledger.commit(ref)

    def test_nobody_aborts_what_may_have_published(self):
        ref = self.lapsed()
        self.ledger.prepare(ref)
        for _ in range(2):
            with pytest.raises(RunFencedError, match=r"may have published|for good"):
                self.ledger.abort(ref)
            assert self.ledger.abort_lapsed(ref.token) is False
            self.ledger.commit(ref)

    def test_an_aborted_run_is_fenced_for_good(self):
        ref = self.begin()
        for _ in range(2):
            self.ledger.abort(ref)
        for change in (self.ledger.prepare, self.ledger.commit, lambda ref: self.ledger.renew(ref, LONG_S)):
            with pytest.raises(RunFencedError, match="ABORTED"):
                change(ref)
        assert self.state(ref) is RunState.ABORTED

    def test_others_abort_only_what_has_lapsed_by_the_stores_clock(self):
        live, dead = self.begin("live"), self.lapsed()
        assert self.ledger.abort_lapsed(live.token) is False
        assert self.ledger.abort_lapsed(dead.token) is True
        assert self.ledger.abort_lapsed(dead.token) is False
        assert self.ledger.state_of([live.token, dead.token]) == {
            live.token: RunState.OPEN,
            dead.token: RunState.ABORTED,
        }

    def test_a_renewed_or_resumed_run_has_not_lapsed(self):
        renewed, resumed = self.lapsed("one"), self.lapsed("two")
        assert self.ledger.read("orders", "one").lapsed
        self.ledger.renew(renewed, LONG_S)
        self.begin("two")
        assert not self.ledger.read("orders", "one").lapsed
        assert not self.ledger.abort_lapsed(renewed.token)
        assert not self.ledger.abort_lapsed(resumed.token)

    def test_what_the_store_does_not_know_is_an_error_and_no_verdict(self):
        stranger = RunRef("orders", "r1", 1, 4711)
        assert self.ledger.state_of([4711]) == {4711: RunState.UNKNOWN}
        assert self.ledger.state_of([]) == {}
        assert self.ledger.abort_lapsed(4711) is False
        for call in (
            self.ledger.prepare,
            self.ledger.commit,
            self.ledger.abort,
            lambda ref: self.ledger.renew(ref, LONG_S),
            lambda ref: self.claims(ref).decide(keys(1)),
            lambda ref: self.ledger.acquire(ref, 1, A, keys(1), LONG_S),
        ):
            with pytest.raises(StoreReplacedError):
                call(stranger)

    def test_a_run_too_old_for_the_retention_is_neither_prepared_nor_committed(self):
        self.ledger = self.place.ledger(retention_s=1.0)
        late, published = self.begin("late", lease_s=0.1), self.begin("published", lease_s=0.1)
        self.ledger.prepare(published)
        time.sleep(1.0)
        with pytest.raises(ClaimsExpiredError, match="abort it and begin it again"):
            self.ledger.prepare(late)
        with pytest.raises(ClaimsExpiredError, match="accept_loss"):
            self.ledger.commit(published)
        assert (self.state(late), self.state(published)) == (RunState.OPEN, RunState.PREPARED)
        self.ledger.commit(published, accept_loss=True)
        self.ledger.prepare(published)
        self.ledger.commit(published)


class ClaimsContract(LedgerContract):
    def test_a_claim_is_the_first_runs_however_often_it_is_asked(self):
        one, two, hashes = self.begin("one"), self.begin("two"), keys(3)
        for _ in range(2):
            assert self.ledger.claim(one, hashes) == [Owner(one.token, None)] * 3
            assert self.ledger.claim(two, hashes[::-1]) == [Owner(one.token, None)] * 3

    def test_owners_come_in_the_order_of_the_hashes(self):
        one, two, hashes = self.begin("one"), self.begin("two"), keys(2500)
        self.ledger.claim(one, hashes[::2])
        owners = self.ledger.claim(two, hashes)
        assert [owner.token for owner in owners] == [
            (two if number % 2 else one).token for number in range(2500)
        ]

    def test_reading_inserts_nothing(self):
        ref, hashes = self.begin(), keys(2)
        assert self.ledger.claim(ref, hashes, insert=False) == [None, None]
        assert self.ledger.claim(ref, hashes[:1]) == [Owner(ref.token, None)]
        assert self.ledger.claim(ref, hashes, insert=False) == [Owner(ref.token, None), None]
        assert self.ledger.claim(ref, []) == []

    @pytest.mark.parametrize("wrong", [[b"x" * 19], [b"x" * 20] * 2])
    def test_a_hash_twice_or_of_another_length_is_refused(self, wrong):
        with pytest.raises(ValueError, match=r"20 bytes|twice"):
            self.ledger.claim(self.begin(), wrong)

    def test_exact_bytes_are_kept(self):
        ref = self.begin()
        hashes = [b"\0" * 20, b" " * 20, b"\xff" * 20, b"\0" * 19 + b" ", b"*?[]\\'\"%s?{}\n\r\t;--00"[:20]]
        marks = [b"\0" * 8, b" " * 8, None, b"\xff" * 8, b"=" * 8]
        assert self.ledger.claim(ref, hashes, fingerprints=marks) == [
            Owner(ref.token, mark) for mark in marks
        ]
        assert self.ledger.claim(ref, hashes) == [Owner(ref.token, mark) for mark in marks]
        assert self.ledger.counts(ref)[ClaimState.OWNED] == 5

    @pytest.mark.parametrize("end", ["prepare", "commit", "abort"])
    def test_the_store_inserts_and_steals_only_while_the_run_is_open(self, end):
        ref, dead, hashes = self.begin(), self.lapsed(), keys(2)
        self.ledger.claim(dead, hashes[:1])
        assert self.ledger.abort_lapsed(dead.token)
        if end == "abort":
            self.ledger.abort(ref)
        else:
            self.ledger.prepare(ref)
        if end == "commit":
            self.ledger.commit(ref)
        assert self.ledger.claim(ref, hashes) == [Owner(dead.token, None), None]
        assert self.ledger.steal(ref, dead.token, hashes[:1]) == set()
        assert self.ledger.claim(ref, hashes, insert=False) == [Owner(dead.token, None), None]

    def test_stealing_changes_only_what_the_old_owner_has(self):
        dead, thief, other, hashes = self.begin("dead"), self.begin("thief"), self.begin("other"), keys(4)
        self.ledger.claim(dead, hashes[:3], fingerprints=[b"1" * 8] * 3)
        self.ledger.claim(other, hashes[3:])
        self.ledger.abort(dead)
        assert self.ledger.steal(other, dead.token, hashes[:1]) == {hashes[0]}
        assert self.ledger.steal(
            thief, dead.token, hashes, fingerprints=[b"2" * 8, b"3" * 8, None, b"4" * 8]
        ) == set(hashes[1:3])
        assert self.ledger.steal(thief, dead.token, hashes) == set(hashes[1:3])
        assert self.ledger.claim(thief, hashes) == [
            Owner(other.token, None),
            Owner(thief.token, b"3" * 8),
            Owner(thief.token, None),
            Owner(other.token, None),
        ]

    def test_what_a_committed_run_owns_is_a_duplicate_for_others_and_new_for_itself(self):
        hashes = keys(5)
        one = self.committed("one", hashes[:3])
        two = self.begin("two")
        for _ in range(2):
            assert self.claims(two).decide(hashes) == [Verdict.DUPLICATE] * 3 + [Verdict.NEW] * 2
            assert self.claims(one).decide(hashes[:3]) == [Verdict.NEW] * 3

    def test_what_an_aborted_run_owned_is_taken_over(self):
        dead, ref, hashes = self.begin("dead"), self.begin(), keys(4)
        self.claims(dead).decide(hashes)
        self.ledger.abort(dead)
        assert self.claims(ref).decide(hashes) == [Verdict.NEW] * 4
        assert self.ledger.counts(ref)[ClaimState.OWNED] == 4
        assert self.ledger.counts(dead)[ClaimState.OWNED] == 0

    def test_a_new_generation_takes_over_what_its_own_dead_one_owned(self):
        hashes = keys(2)
        first = self.begin()
        self.claims(first).decide(hashes)
        self.ledger.abort(first)
        second = self.begin()
        assert self.claims(second).decide(hashes) == [Verdict.NEW] * 2
        with pytest.raises(RunFencedError):
            self.claims(first).decide(keys(1))

    @pytest.mark.parametrize("on_conflict", list(OnConflict))
    def test_an_open_run_whose_lease_has_ended_is_aborted_and_taken_over(self, on_conflict):
        dead, ref, hashes = self.lapsed(), self.begin(), keys(2)
        self.claims(dead).decide(hashes)
        assert self.claims(ref, on_conflict).decide(hashes) == [Verdict.NEW] * 2
        assert self.state(dead) is RunState.ABORTED

    @pytest.mark.parametrize("prepared", [False, True])
    def test_a_live_run_is_never_robbed_nor_its_keys_dropped(self, prepared):
        live = self.lapsed("live") if prepared else self.begin("live")
        ref, hashes = self.begin(), keys(3)
        self.claims(live).decide(hashes[:2])
        if prepared:
            self.ledger.prepare(live)
        with pytest.raises(RunConflictError):
            self.claims(ref).decide(hashes)
        diverted = self.claims(ref, OnConflict.DIVERT).decide(hashes)
        assert diverted == [Verdict.CONFLICT, Verdict.CONFLICT, Verdict.NEW]
        with pytest.raises(RunConflictError, match="waited"):
            self.claims(ref, OnConflict.WAIT, timeout_s=0.1, poll_s=0.02).decide(hashes)
        assert self.state(live) is (RunState.PREPARED if prepared else RunState.OPEN)

    def test_waiting_ends_when_the_other_run_commits(self):
        live, ref, hashes = self.begin("live"), self.begin(), keys(2)
        self.claims(live).decide(hashes)
        self.ledger.prepare(live)
        claims = self.claims(ref, OnConflict.WAIT, sleep=lambda _: self.ledger.commit(live))
        assert claims.decide(hashes) == [Verdict.DUPLICATE] * 2

    def test_waiting_ends_when_the_other_runs_lease_does(self):
        live, ref, hashes = self.begin("live", lease_s=0.3), self.begin(), keys(2)
        self.claims(live).decide(hashes)
        assert self.claims(ref, OnConflict.WAIT, poll_s=0.05).decide(hashes) == [Verdict.NEW] * 2

    @pytest.mark.parametrize("committed", [False, True])
    def test_a_prepared_run_gives_the_same_verdicts_and_claims_nothing(self, committed):
        hashes = keys(4)
        self.committed("one", hashes[:1])
        ref = self.begin()
        assert self.claims(ref).decide(hashes[:3]) == [Verdict.DUPLICATE, Verdict.NEW, Verdict.NEW]
        self.ledger.prepare(ref)
        if committed:
            self.ledger.commit(ref)
        assert self.claims(ref).decide(hashes[:3]) == [Verdict.DUPLICATE, Verdict.NEW, Verdict.NEW]
        for on_conflict in (OnConflict.WAIT, OnConflict.FAIL):
            with pytest.raises(RunInputChangedError):
                self.claims(ref, on_conflict).decide(hashes)
        assert self.ledger.claim(self.begin("two"), hashes[3:], insert=False) == [None]

    @pytest.mark.parametrize("fate", ["open", "aborted", "collected", "committed"])
    def test_a_key_put_aside_stays_aside_while_publishing(self, fate):
        live, ref, hashes = self.begin("live"), self.begin(), keys(2)
        self.claims(live).decide(hashes[:1])
        claims = self.claims(ref, OnConflict.DIVERT)
        assert claims.decide(hashes) == [Verdict.CONFLICT, Verdict.NEW]
        self.ledger.prepare(ref)
        if fate == "committed":
            self.ledger.prepare(live)
            self.ledger.commit(live)
        elif fate != "open":
            self.ledger.abort(live)
        if fate == "collected":
            self.ledger.gc()
        first = Verdict.DUPLICATE if fate == "committed" else Verdict.CONFLICT
        for again in (claims, self.claims(ref, OnConflict.DIVERT)):
            assert again.decide(hashes) == [first, Verdict.NEW]

    def test_another_payload_under_the_same_key_is_reported(self):
        hashes = keys(3)
        ref = self.begin("one")
        self.claims(ref).decide(hashes, [b"1" * 8, b"2" * 8, None])
        self.ledger.prepare(ref)
        self.ledger.commit(ref)
        for run, verdict in ((ref, Verdict.NEW), (self.begin("two"), Verdict.DUPLICATE)):
            decisions = self.claims(run).decide_each(hashes, [b"1" * 8, b"x" * 8, b"x" * 8])
            assert [(decision.verdict, decision.other_payload) for decision in decisions] == [
                (verdict, False),
                (verdict, True),
                (verdict, False),
            ]


class PendingContract(LedgerContract):
    def hold(self, ref: RunRef, attempt: bytes, hashes: list[bytes], epoch=1, lease_s=LONG_S) -> list[Hold]:
        return [held.hold for held in self.ledger.acquire(ref, epoch, attempt, hashes, lease_s)]

    def test_one_attempt_holds_a_key_until_it_finishes(self):
        ref, hashes = self.begin(), keys(3)
        assert self.hold(ref, A, hashes[:2]) == [Hold.MINE] * 2
        assert self.hold(ref, A, hashes[:2]) == [Hold.MINE] * 2
        other = self.ledger.acquire(ref, 1, B, hashes, LONG_S)
        assert [held.hold for held in other] == [Hold.HELD, Hold.HELD, Hold.MINE]
        assert (other[0].attempt, other[0].token) == (A, ref.token)
        assert 0 < other[0].lease_rest_s <= LONG_S
        assert self.ledger.finish(ref, A, [(hashes[0], b"\0result"), (hashes[1], None)]) == set(hashes[:2])
        done = self.ledger.acquire(ref, 1, B, hashes[:2], LONG_S)
        assert [(held.hold, held.result) for held in done] == [(Hold.DONE, b"\0result"), (Hold.DONE, None)]

    def test_finishing_twice_is_finishing_once(self):
        ref, hashes = self.begin(), keys(2)
        self.hold(ref, A, hashes)
        for _ in range(2):
            assert self.ledger.finish(ref, A, [(hashes[0], b""), (hashes[1], b"2")]) == set(hashes)
        assert [held.result for held in self.ledger.acquire(ref, 1, B, hashes, LONG_S)] == [b"", b"2"]

    def test_who_lost_a_key_cannot_finish_renew_or_free_it(self):
        ref, hashes = self.begin(), keys(2)
        self.hold(ref, A, hashes[:1], lease_s=SHORT_S)
        self.hold(ref, A, hashes[1:])
        time.sleep(2 * SHORT_S)
        assert self.hold(ref, B, hashes) == [Hold.MINE, Hold.HELD]
        assert self.ledger.renew_claims(A, hashes, LONG_S) == {hashes[1]}
        self.ledger.give_up(A, hashes[:1])
        assert self.ledger.finish(ref, A, [(key_hash, b"late") for key_hash in hashes]) == {hashes[1]}
        assert self.ledger.finish(ref, B, [(hashes[0], b"right")]) == {hashes[0]}
        assert [held.result for held in self.ledger.acquire(ref, 1, B, hashes, LONG_S)] == [b"right", b"late"]

    def test_a_renewed_lease_holds(self):
        ref, hashes = self.begin(), keys(1)
        self.hold(ref, A, hashes, lease_s=0.2)
        assert self.ledger.renew_claims(A, hashes, LONG_S) == set(hashes)
        time.sleep(0.3)
        assert self.hold(ref, B, hashes) == [Hold.HELD]

    def test_a_key_given_up_is_free_and_a_finished_one_is_not(self):
        ref, hashes = self.begin(), keys(2)
        self.hold(ref, A, hashes)
        self.ledger.finish(ref, A, [(hashes[0], None)])
        self.ledger.give_up(A, hashes)
        assert self.hold(ref, B, hashes) == [Hold.DONE, Hold.MINE]

    def test_a_newer_epoch_takes_over_and_the_zombie_cannot_finish(self):
        ref, hashes = self.begin(), keys(250)
        self.hold(ref, A, hashes)
        epoch = self.ledger.begin("orders", "r1", lease_s=LONG_S).epoch
        assert self.hold(ref, B, hashes, epoch=epoch) == [Hold.MINE] * 250
        assert self.hold(ref, A, hashes) == [Hold.HELD] * 250
        assert self.ledger.finish(ref, A, [(hashes[0], None)]) == set()

    def test_an_aborted_runs_pending_keys_are_taken_over_and_its_finished_ones_stay(self):
        dead, ref, hashes = self.begin("dead"), self.begin(), keys(2)
        self.hold(dead, A, hashes)
        assert self.hold(ref, B, hashes) == [Hold.HELD] * 2
        self.ledger.finish(dead, A, [(hashes[0], b"r")])
        self.ledger.abort(dead)
        assert self.hold(ref, B, hashes) == [Hold.DONE, Hold.MINE]
        assert self.ledger.finish(dead, A, [(hashes[1], b"late")]) == set()

    @pytest.mark.parametrize(("end", "error"), [("prepare", RunInputChangedError), ("abort", RunFencedError)])
    def test_a_run_that_is_not_open_acquires_nothing_but_reads_what_is_done(self, end, error):
        ref, hashes = self.begin(), keys(2)
        self.hold(ref, A, hashes[:1])
        self.ledger.finish(ref, A, [(hashes[0], b"r")])
        getattr(self.ledger, end)(ref)
        assert self.hold(ref, B, hashes[:1]) == [Hold.DONE]
        with pytest.raises(error):
            self.hold(ref, B, hashes)

    def test_a_key_of_mode_dedup_is_refused(self):
        ref, hashes = self.begin(), keys(1)
        self.ledger.claim(ref, hashes)
        with pytest.raises(ConfigurationError, match="mode dedup"):
            self.hold(ref, A, hashes)

    def test_large_results_come_back(self):
        ref, hashes = self.begin(), keys(400)
        self.hold(ref, A, hashes)
        results = [(key_hash, os.urandom(64 * 1024)) for key_hash in hashes]  # more than a MySQL packet takes
        assert self.ledger.finish(ref, A, results) == set(hashes)
        stored = self.ledger.acquire(ref, 1, B, hashes[:3], LONG_S)
        assert [held.result for held in stored] == [result for _, result in results[:3]]

    def test_counts_tell_the_states_apart(self):
        ref, hashes = self.begin(), keys(5)
        self.ledger.claim(ref, hashes[:2])
        self.hold(ref, A, hashes[2:])
        self.ledger.finish(ref, A, [(hashes[2], b"x" * 9)])
        self.ledger.claim(self.begin("other"), keys(3))
        expected = {ClaimState.OWNED: 2, ClaimState.PENDING: 2, ClaimState.DONE: 1}
        assert self.ledger.counts(ref) == expected


class GarbageContract(LedgerContract):
    def test_claims_of_aborted_runs_go_but_finished_ones_stay(self):
        dead, hashes = self.begin("dead"), keys(1203)
        self.ledger.claim(dead, hashes[:1200])
        self.ledger.acquire(dead, 1, A, hashes[1200:], LONG_S)
        self.ledger.finish(dead, A, [(hashes[1202], None)])
        self.ledger.abort(dead)
        assert self.ledger.gc(limit=10) == 10
        assert self.ledger.gc() == 1192
        assert self.ledger.gc() == 0
        expected = {ClaimState.OWNED: 0, ClaimState.PENDING: 0, ClaimState.DONE: 1}
        assert self.ledger.counts(dead) == expected
        assert self.state(dead) is RunState.ABORTED

    def test_claims_of_live_and_prepared_runs_stay_however_old(self):
        self.ledger = self.place.ledger(retention_s=0.5)
        live, prepared = self.begin("live", lease_s=0.05), self.begin("prepared", lease_s=0.05)
        for ref in (live, prepared):
            self.ledger.claim(ref, keys(2))
        self.ledger.prepare(prepared)
        time.sleep(0.6)
        self.ledger.renew(live, 0.05)
        assert self.ledger.gc() == 0
        assert self.ledger.counts(prepared)[ClaimState.OWNED] == 2
        assert (self.state(live), self.state(prepared)) == (RunState.OPEN, RunState.PREPARED)

    def test_a_committed_run_is_forgotten_after_the_retention_with_all_of_it(self):
        self.ledger = self.place.ledger(retention_s=0.5)
        ref, hashes = self.begin(lease_s=0.05), keys(3)
        self.ledger.claim(ref, hashes)
        self.ledger.prepare(ref)
        self.ledger.commit(ref)
        assert self.ledger.gc() == 0
        time.sleep(0.6)
        assert self.ledger.gc() == 3
        assert self.state(ref) is RunState.UNKNOWN
        assert self.ledger.read("orders", "r1") is None
        assert self.claims(self.begin("two", lease_s=0.05)).decide(hashes) == [Verdict.NEW] * 3

    def test_an_open_run_abandoned_for_a_retention_is_aborted(self):
        self.ledger = self.place.ledger(retention_s=0.5)
        ref = self.begin(lease_s=0.05)
        self.ledger.claim(ref, keys(2))
        assert self.ledger.gc() == 0
        time.sleep(0.6)
        assert self.ledger.gc() == 2
        assert self.state(ref) is RunState.ABORTED


class FullContract(RunsContract, ClaimsContract, PendingContract):
    """Everything but garbage collection, which Redis does by itself."""
