"""Attempts at one run: one driver at a time has it, and only what the prepared one claimed counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from idempotent.adapters.spark.ledger import OnConflict, RunState
from idempotent.adapters.spark.ledger.claims import ClaimState, Owner
from idempotent.adapters.spark.ledger.run_claims import RowVerdict
from idempotent.adapters.spark.ledger.runs import this_driver
from idempotent.errors import (
    RunConflictError,
    RunFencedError,
    RunInputChangedError,
    UnpublishedClaimsError,
)
from tests.adapters.spark.ledger.contract.base import LONG_S, LedgerContract, keys
from tests.adapters.spark.ledger.counting import claims_of
from tests.support.logs import logged


class AttemptsContract(LedgerContract):
    @pytest.mark.parametrize("prepared", [False, True])
    def test_a_run_that_another_driver_has_is_refused_until_its_lease_ends(self, prepared, caplog):
        caplog.set_level("INFO")
        first = self.begin()
        if prepared:
            self.ledger.prepare(first)
        with pytest.raises(RunConflictError, match=r"another driver has it.*takeover=True"):
            self.begin()
        self.ledger.renew(first, 1.0)
        assert not logged(caplog, "run_waits")
        assert self.begin(wait_s=60.0).epoch == 2
        (told,) = logged(caplog, "run_waits")
        assert "another driver has it" in told.reason
        (told,) = logged(caplog, "run_waited")
        assert 0 < told.waited_s < 60

    def test_a_drivers_log_tells_the_life_of_its_run(self, caplog):
        caplog.set_level("INFO")
        first = self.begin()
        self.ledger.claim(first, keys(2))
        self.ledger.prepare(first, rows=2)
        second = self.again()
        self.ledger.commit(second)
        self.ledger.commit(second)
        self.begin()
        other = self.begin("r2")
        self.ledger.abort(other)
        told = [
            (each.event, each.run, *(getattr(each, name, None) for name in ("state", "rows", "by")))
            for each in caplog.records
            if each.name == "idempotent.adapters.spark.ledger.ledger"
        ]
        assert told == [
            ("run_begun", str(first), "OPEN", None, None),
            ("run_prepared", str(first), None, 2, None),
            ("run_begun", str(second), "PREPARED", None, None),
            ("run_committed", str(second), None, None, None),
            ("run_already_committed", str(replace(second, epoch=1)), None, None, None),
            ("run_begun", str(other), "OPEN", None, None),
            ("run_aborted", str(other), None, None, f"driver {this_driver()}"),
        ]
        new, taken, _ = logged(caplog, "run_begun")
        assert new.before is None
        assert f"driver {this_driver()} has it until" in taken.before

    def test_a_driver_that_ends_in_order_lets_the_next_one_begin_at_once(self):
        first = self.begin()
        self.ledger.end_lease(first)
        second = self.begin()
        assert second.epoch == 2
        self.ledger.end_lease(first)
        with pytest.raises(RunConflictError):
            self.begin()

    def test_a_fenced_driver_can_change_nothing(self):
        zombie, dead, hashes = self.begin(), self.lapsed("dead"), keys(3)
        self.ledger.claim(zombie, hashes[:1])
        self.ledger.claim(dead, hashes[1:2])
        self.ledger.abort_lapsed(dead.token)
        assert self.again().epoch == 2
        assert self.ledger.claim(zombie, hashes) == [Owner(zombie.token, 1), Owner(dead.token, 1), None]
        assert self.ledger.steal(zombie, Owner(dead.token, 1), hashes[1:2]) == set()
        for step in (
            lambda: self.claims(zombie).decide(hashes),
            lambda: self.handler(zombie).acquire(keys(1)),
            lambda: self.ledger.prepare(zombie, rows=1),
            lambda: self.ledger.commit(zombie),
            lambda: self.ledger.abort(zombie),
            lambda: self.ledger.renew(zombie, LONG_S),
        ):
            with pytest.raises(RunFencedError, match="taken over by another driver"):
                step()
        row = self.ledger.store.newest("orders", "r1")
        assert (row.state, row.ref.epoch, row.lapsed) == (RunState.OPEN, 2, False)

    @pytest.mark.parametrize("state", ["prepared", "committed"])
    def test_a_driver_that_is_fenced_while_it_publishes_learns_it_at_the_commit(self, state):
        zombie = self.begin()
        self.ledger.prepare(zombie)
        later = self.again()
        if state == "committed":
            self.ledger.commit(later, "by the later one")
        with pytest.raises(RunFencedError, match="taken over by another driver"):
            self.ledger.commit(zombie, "by the zombie")
        self.ledger.commit(later)
        assert self.ledger.store.newest("orders", "r1").output_ref == (
            "by the later one" if state == "committed" else None
        )

    def test_a_later_attempt_takes_the_claims_that_it_meets_and_the_others_go_free(self):
        first, other, hashes = self.begin(), self.begin("other"), keys(5)
        assert self.claims(first).decide(hashes[:4]) == [RowVerdict.NEW] * 4
        second = self.again()
        assert self.claims(second).decide(hashes[1:]) == [RowVerdict.NEW] * 4
        assert self.ledger.claim(other, hashes, insert=False) == [
            Owner(first.token, mark) for mark in (1, 2, 2, 2, 2)
        ]
        # Until the run is PREPARED an attempt to come may confirm any of them.
        diverted = self.claims(other, OnConflict.DIVERT)
        assert diverted.decide(hashes) == [RowVerdict.CONFLICT] * 5
        self.ledger.prepare(second, rows=4)
        assert diverted.decide(hashes) == [RowVerdict.NEW] + [RowVerdict.CONFLICT] * 4
        self.ledger.commit(second)
        assert diverted.decide(hashes) == [RowVerdict.NEW] + [RowVerdict.DUPLICATE] * 4
        assert (
            self.claims(self.begin("third"), OnConflict.DIVERT).decide(hashes)[1:]
            == [RowVerdict.DUPLICATE] * 4
        )

    def test_the_free_claims_of_a_committed_run_are_taken_by_a_run_that_never_saw_it_prepared(self):
        first, hashes = self.begin(), keys(2)
        self.claims(first).decide(hashes)
        second = self.again()
        self.claims(second).decide(hashes[:1])
        self.ledger.prepare(second, rows=1)
        self.ledger.commit(second)
        assert self.claims(self.begin("other")).decide(hashes) == [RowVerdict.DUPLICATE, RowVerdict.NEW]

    def test_the_fingerprint_of_a_claim_that_is_taken_is_the_later_one(self):
        hashes = keys(1)
        self.claims(self.begin()).decide_each(hashes, [b"1" * 8])
        (decision,) = self.claims(self.again()).decide_each(hashes, [b"2" * 8])
        assert (decision.verdict, decision.other_payload) == (RowVerdict.NEW, False)

    def test_of_two_frames_with_one_key_the_first_has_it(self):
        ref, hashes = self.begin(), keys(3)
        for _ in range(2):
            assert self.claims(ref, frame=1).decide(hashes[:2]) == [RowVerdict.NEW] * 2
            assert self.claims(ref, frame=2).decide(hashes) == [RowVerdict.DUPLICATE] * 2 + [RowVerdict.NEW]
        self.ledger.prepare(ref, rows=3)
        assert self.claims(ref, frame=2).decide(hashes) == [RowVerdict.DUPLICATE] * 2 + [RowVerdict.NEW]

    def test_a_later_attempt_may_evaluate_its_frames_in_another_order(self):
        first, hashes = self.begin(), keys(2)
        self.claims(first, frame=1).decide(hashes)
        second = self.again()
        assert self.claims(second, frame=2).decide(hashes) == [RowVerdict.NEW] * 2
        assert self.claims(second, frame=1).decide(hashes) == [RowVerdict.DUPLICATE] * 2

    def test_prepare_refuses_another_number_of_rows_than_this_attempt_has_claimed(self):
        first, hashes = self.begin(), keys(4)
        self.claims(first).decide(hashes)
        for rows in (0, 3, 5):
            with pytest.raises(UnpublishedClaimsError, match=f"claimed 4 keys, and {rows} rows"):
                self.ledger.prepare(first, rows=rows)
        assert self.state(first) is RunState.OPEN
        second = self.again()
        self.claims(second).decide(hashes[:2])
        with pytest.raises(UnpublishedClaimsError, match="claimed 2 keys, and 4 rows"):
            self.ledger.prepare(second, rows=4)
        # Ten keys are in Parquet, and one of the claims here is no row's.
        with pytest.raises(UnpublishedClaimsError, match="claimed 11 keys, and 1 row would"):
            self.ledger.prepare(second, rows=1, elsewhere=9)
        for _ in range(2):
            self.ledger.prepare(second, rows=2)
        assert claims_of(self.ledger, second)[ClaimState.OWNED] == 4

    def test_keys_stolen_and_keys_taken_are_counted_once(self):
        dead, hashes = self.begin("dead"), keys(4)
        self.claims(dead).decide(hashes[:2])
        self.ledger.abort(dead)
        first = self.begin()
        self.claims(first).decide(hashes)
        second = self.again()
        for _ in range(2):
            assert self.claims(second).decide(hashes) == [RowVerdict.NEW] * 4
        self.ledger.prepare(second, rows=4)

    def test_what_was_prepared_is_published_by_a_later_attempt_and_not_evaluated_again(self):
        first, hashes = self.begin(), keys(2)
        self.claims(first).decide(hashes)
        self.ledger.prepare(first, rows=2, manifest=b"\0two files")
        row = self.ledger.begin("orders", "r1", lease_s=LONG_S, takeover=True)
        assert (row.prepared, row.manifest, row.ref.epoch) == (1, b"\0two files", 2)
        for ask in (hashes, keys(1)):
            with pytest.raises(RunFencedError, match="not evaluated again"):
                self.claims(row.ref).decide(ask)
        self.ledger.prepare(row.ref, rows=7)
        self.ledger.commit(row.ref)
        assert self.claims(self.begin("other")).decide(hashes) == [RowVerdict.DUPLICATE] * 2

    def test_a_committed_run_is_begun_again_at_once_as_the_attempt_that_was_prepared(self):
        hashes = keys(1)
        first = self.committed("r1", hashes)
        row = self.ledger.begin("orders", "r1", lease_s=LONG_S)
        assert (row.state, row.ref) == (RunState.COMMITTED, first)
        assert self.claims(row.ref).decide(hashes) == [RowVerdict.NEW]
        with pytest.raises(RunInputChangedError):
            self.claims(row.ref).decide(keys(1))

    def test_who_begins_a_run_that_a_later_attempt_has_committed_is_not_told_of_another_driver(self):
        first = self.begin()
        self.ledger.prepare(first)
        self.ledger.commit(self.again())
        row = self.ledger.begin("orders", "r1", lease_s=LONG_S)
        assert (row.state, row.ref) == (RunState.COMMITTED, first)
        self.ledger.renew(row.ref, LONG_S)
