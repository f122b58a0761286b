"""Claims of mode dedup, in every ledger."""

from __future__ import annotations

import pytest

from idempotent.adapters.spark.ledger import OnConflict, RunLedger, RunState
from idempotent.adapters.spark.ledger.claims import ClaimState, Owner
from idempotent.adapters.spark.ledger.run_claims import RowVerdict, RunClaims
from idempotent.errors import RunConflictError, RunFencedError, RunInputChangedError
from tests.adapters.spark.ledger.contract.base import LedgerContract, keys
from tests.adapters.spark.ledger.counting import claims_of
from tests.support.logs import logged


class ClaimsContract(LedgerContract):
    def test_a_claim_is_the_first_runs_however_often_it_is_asked(self):
        one, two, hashes = self.begin("one"), self.begin("two"), keys(3)
        for _ in range(2):
            assert self.ledger.claim(one, hashes) == [Owner(one.token, 1)] * 3
            assert self.ledger.claim(two, hashes[::-1]) == [Owner(one.token, 1)] * 3

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
        assert self.ledger.claim(ref, hashes[:1]) == [Owner(ref.token, 1)]
        assert self.ledger.claim(ref, hashes, insert=False) == [Owner(ref.token, 1), None]
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
            Owner(ref.token, 1, 0, mark) for mark in marks
        ]
        assert self.ledger.claim(ref, hashes) == [Owner(ref.token, 1, 0, mark) for mark in marks]
        assert claims_of(self.ledger, ref)[ClaimState.OWNED] == 5

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
        assert self.ledger.claim(ref, hashes) == [Owner(dead.token, 1), None]
        assert self.ledger.steal(ref, Owner(dead.token, 1), hashes[:1]) == set()
        assert self.ledger.claim(ref, hashes, insert=False) == [Owner(dead.token, 1), None]

    def test_stealing_changes_only_what_the_old_owner_has(self):
        dead, thief, other, hashes = self.begin("dead"), self.begin("thief"), self.begin("other"), keys(4)
        self.ledger.claim(dead, hashes[:3], fingerprints=[b"1" * 8] * 3)
        self.ledger.claim(other, hashes[3:])
        self.ledger.abort(dead)
        assert self.ledger.steal(other, Owner(dead.token, 1), hashes[:1]) == {hashes[0]}
        assert self.ledger.steal(
            thief, Owner(dead.token, 1), hashes, fingerprints=[b"2" * 8, b"3" * 8, None, b"4" * 8]
        ) == set(hashes[1:3])
        assert self.ledger.steal(thief, Owner(dead.token, 1), hashes) == set(hashes[1:3])
        assert self.ledger.claim(thief, hashes) == [
            Owner(other.token, 1),
            Owner(thief.token, 1, 0, b"3" * 8),
            Owner(thief.token, 1),
            Owner(other.token, 1),
        ]

    def test_what_a_committed_run_owns_is_a_duplicate_for_others_and_new_for_itself(self):
        hashes = keys(5)
        one = self.committed("one", hashes[:3])
        two = self.begin("two")
        for _ in range(2):
            assert self.claims(two).decide(hashes) == [RowVerdict.DUPLICATE] * 3 + [RowVerdict.NEW] * 2
            assert self.claims(one).decide(hashes[:3]) == [RowVerdict.NEW] * 3

    def test_what_an_aborted_run_owned_is_taken_over(self):
        dead, ref, hashes = self.begin("dead"), self.begin(), keys(4)
        self.claims(dead).decide(hashes)
        self.ledger.abort(dead)
        assert self.claims(ref).decide(hashes) == [RowVerdict.NEW] * 4
        assert claims_of(self.ledger, ref)[ClaimState.OWNED] == 4
        assert claims_of(self.ledger, dead)[ClaimState.OWNED] == 0

    def test_a_new_generation_takes_over_what_its_own_dead_one_owned(self):
        hashes = keys(2)
        first = self.begin()
        self.claims(first).decide(hashes)
        self.ledger.abort(first)
        second = self.begin()
        assert self.claims(second).decide(hashes) == [RowVerdict.NEW] * 2
        with pytest.raises(RunFencedError):
            self.claims(first).decide(keys(1))

    @pytest.mark.parametrize("on_conflict", list(OnConflict))
    def test_an_open_run_whose_lease_has_ended_is_aborted_and_taken_over(self, on_conflict, caplog):
        dead, ref, hashes = self.lapsed(), self.begin(), keys(2)
        self.claims(dead).decide(hashes)
        assert self.claims(ref, on_conflict).decide(hashes) == [RowVerdict.NEW] * 2
        assert self.state(dead) is RunState.ABORTED
        (told,) = logged(caplog, "run_aborted")
        assert (told.levelname, told.by) == ("WARNING", str(ref))
        assert told.run == f"run 'dead' of consumer {ref.consumer!r}"

    @pytest.mark.parametrize("prepared", [False, True])
    def test_a_live_run_is_never_robbed_nor_its_keys_dropped(self, prepared):
        live = self.lapsed("live") if prepared else self.begin("live")
        ref, hashes = self.begin(), keys(3)
        self.claims(live).decide(hashes[:2])
        if prepared:
            self.ledger.prepare(live)
        with pytest.raises(RunConflictError, match=r"owned by run 'live', which is (OPEN|PREPARED)"):
            self.claims(ref).decide(hashes)
        diverted = self.claims(ref, OnConflict.DIVERT).decide(hashes)
        assert diverted == [RowVerdict.CONFLICT, RowVerdict.CONFLICT, RowVerdict.NEW]
        with pytest.raises(RunConflictError, match=r"waited.*: run 'live', which is"):
            self.claims(ref, OnConflict.WAIT, timeout_s=0.05, poll_s=0.01).decide(hashes)
        assert self.state(live) is (RunState.PREPARED if prepared else RunState.OPEN)

    def test_waiting_ends_when_the_other_run_commits(self, caplog):
        live, ref, hashes = self.begin("live"), self.begin(), keys(2)
        self.claims(live).decide(hashes)
        self.ledger.prepare(live)
        waits = iter([lambda: None, lambda: None, lambda: self.ledger.commit(live)])
        patient = RunLedger(self.ledger.store, sleep=lambda _: next(waits)())
        claims = RunClaims(patient, ref, on_conflict=OnConflict.WAIT)
        assert claims.decide(hashes) == [RowVerdict.DUPLICATE] * 2
        (told,) = logged(caplog, "run_waits")
        assert "run 'live', which is PREPARED" in told.reason

    def test_waiting_ends_when_the_other_runs_lease_does(self):
        live, ref, hashes = self.begin("live", lease_s=0.3), self.begin(), keys(2)
        self.claims(live).decide(hashes)
        assert self.claims(ref, OnConflict.WAIT, poll_s=0.05).decide(hashes) == [RowVerdict.NEW] * 2

    @pytest.mark.parametrize("committed", [False, True])
    def test_a_prepared_run_gives_the_same_verdicts_and_claims_nothing(self, committed):
        hashes = keys(4)
        self.committed("one", hashes[:1])
        ref = self.begin()
        assert self.claims(ref).decide(hashes[:3]) == [RowVerdict.DUPLICATE, RowVerdict.NEW, RowVerdict.NEW]
        self.ledger.prepare(ref)
        if committed:
            self.ledger.commit(ref)
        assert self.claims(ref).decide(hashes[:3]) == [RowVerdict.DUPLICATE, RowVerdict.NEW, RowVerdict.NEW]
        for on_conflict in (OnConflict.WAIT, OnConflict.FAIL):
            with pytest.raises(RunInputChangedError):
                self.claims(ref, on_conflict).decide(hashes)
        assert self.ledger.claim(self.begin("two"), hashes[3:], insert=False) == [None]

    @pytest.mark.parametrize("fate", ["open", "aborted", "collected", "committed"])
    def test_a_key_put_aside_stays_aside_while_publishing(self, fate):
        live, ref, hashes = self.begin("live"), self.begin(), keys(2)
        self.claims(live).decide(hashes[:1])
        claims = self.claims(ref, OnConflict.DIVERT)
        assert claims.decide(hashes) == [RowVerdict.CONFLICT, RowVerdict.NEW]
        self.ledger.prepare(ref)
        if fate == "committed":
            self.ledger.prepare(live)
            self.ledger.commit(live)
        elif fate != "open":
            self.ledger.abort(live)
        if fate == "collected":
            self.ledger.collect()
        first = RowVerdict.DUPLICATE if fate == "committed" else RowVerdict.CONFLICT
        for again in (claims, self.claims(ref, OnConflict.DIVERT)):
            assert again.decide(hashes) == [first, RowVerdict.NEW]

    def test_another_payload_under_the_same_key_is_reported(self):
        hashes = keys(3)
        ref = self.begin("one")
        self.claims(ref).decide_each(hashes, [b"1" * 8, b"2" * 8, None])
        self.ledger.prepare(ref)
        self.ledger.commit(ref)
        for run, verdict in ((ref, RowVerdict.NEW), (self.begin("two"), RowVerdict.DUPLICATE)):
            decisions = self.claims(run).decide_each(hashes, [b"1" * 8, b"x" * 8, b"x" * 8])
            assert [(decision.verdict, decision.other_payload) for decision in decisions] == [
                (verdict, False),
                (verdict, True),
                (verdict, False),
            ]
