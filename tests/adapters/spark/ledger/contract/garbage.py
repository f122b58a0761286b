"""Garbage collection, in every ledger but Redis, which expires keys."""

from __future__ import annotations

import time

from idempotent.adapters.spark.ledger import RunState
from idempotent.adapters.spark.ledger.claims import ClaimState
from idempotent.adapters.spark.ledger.run_claims import RowVerdict
from idempotent.adapters.spark.ledger.runs import Collected
from tests.adapters.spark.ledger.contract.base import LONG_S, SHORT_S, LedgerContract, keys
from tests.adapters.spark.ledger.counting import claims_of


class GarbageContract(LedgerContract):
    def test_claims_of_aborted_runs_go_but_finished_ones_stay(self):
        dead, hashes = self.begin("dead"), keys(1203)
        self.ledger.claim(dead, hashes[:1200])
        self.handler(dead).acquire(hashes[1200:])
        self.handler(dead).finish([(hashes[1202], None)])
        self.ledger.abort(dead)
        assert self.ledger.collect(limit=10).claims == 10
        assert self.ledger.collect().claims == 1192
        assert self.ledger.collect().claims == 0
        expected = {ClaimState.OWNED: 0, ClaimState.PENDING: 0, ClaimState.DONE: 1}
        assert claims_of(self.ledger, dead) == expected
        assert self.state(dead) is RunState.ABORTED

    def test_claims_of_live_and_prepared_runs_stay_however_old(self):
        live, prepared = self.short_lived("live"), self.short_lived("prepared")
        for ref in (live, prepared):
            self.ledger.claim(ref, keys(2))
        self.ledger.renew(live, LONG_S)
        self.ledger.prepare(prepared)
        assert self.ledger.collect().claims == 0
        for ref in (live, prepared):
            assert claims_of(self.ledger, ref)[ClaimState.OWNED] == 2
        assert (self.state(live), self.state(prepared)) == (RunState.OPEN, RunState.PREPARED)

    def test_a_committed_run_is_forgotten_after_its_retention_with_all_of_it(self):
        hashes = keys(3)
        ref = self.short_lived("r1")
        assert set(self.claims(ref).decide(hashes)) == {RowVerdict.NEW}
        self.ledger.prepare(ref)
        self.ledger.commit(ref)
        time.sleep(SHORT_S)
        assert self.ledger.collect() == Collected(claims=3, runs=1)
        assert not any(self.ledger.collect())
        assert self.state(ref) is RunState.UNKNOWN
        assert self.ledger.store.newest("orders", "r1") is None
        assert self.claims(self.begin("two")).decide(hashes) == [RowVerdict.NEW] * 3

    def test_an_open_run_abandoned_for_its_retention_is_aborted(self):
        lapsed, abandoned = self.lapsed(), self.short_lived("abandoned")
        for ref in (lapsed, abandoned):
            self.ledger.claim(ref, keys(2))
        assert self.ledger.collect(limit=0) == Collected(aborted=1)
        assert (self.state(lapsed), self.state(abandoned)) == (RunState.OPEN, RunState.ABORTED)
        assert self.ledger.collect().claims == 2
