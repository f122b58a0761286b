"""Claims of the modes replay and effect, in every ledger."""

from __future__ import annotations

import os
import time
from enum import Enum

import pytest

from idempotent.adapters.spark.ledger.claims import ClaimState
from idempotent.adapters.spark.ledger.handler_claims import HandlerClaims
from idempotent.adapters.spark.ledger.runs import RunRef
from idempotent.errors import ConfigurationError, RunFencedError, RunInputChangedError
from tests.adapters.spark.ledger.contract.base import LONG_S, SHORT_S, A, B, LedgerContract, keys
from tests.adapters.spark.ledger.counting import claims_of


class Hold(Enum):
    """What a handler learns about a key."""

    MINE = "run the handler"
    DONE = "take its result"
    HELD = "wait"


def holds(claims: HandlerClaims, hashes: list[bytes]) -> list[Hold]:
    return [
        Hold.MINE if row.is_mine(claims.holder) else Hold.HELD if row.is_held(claims.holder) else Hold.DONE
        for row in claims.acquire(hashes).values()
    ]


class PendingContract(LedgerContract):
    def hold(self, ref: RunRef, attempt: bytes, hashes: list[bytes], lease_s=LONG_S) -> list[Hold]:
        return holds(self.handler(ref, attempt, lease_s), hashes)

    def test_one_attempt_holds_a_key_until_it_finishes(self):
        ref, hashes = self.begin(), keys(3)
        assert self.hold(ref, A, hashes[:2]) == [Hold.MINE] * 2
        assert self.hold(ref, A, hashes[:2]) == [Hold.MINE] * 2
        other = [*self.handler(ref, B).acquire(hashes).values()]
        assert self.hold(ref, B, hashes) == [Hold.HELD, Hold.HELD, Hold.MINE]
        assert (other[0].attempt, other[0].token) == (A, ref.token)
        assert 0 < other[0].lease_rest_s <= LONG_S
        assert self.handler(ref).finish([(hashes[0], b"\0result"), (hashes[1], None)]) == set(hashes[:2])
        done = self.handler(ref, B).acquire(hashes[:2]).values()
        assert [held.result for held in done] == [b"\0result", None]
        assert self.hold(ref, B, hashes[:2]) == [Hold.DONE] * 2

    def test_finishing_twice_is_finishing_once(self):
        ref, hashes = self.begin(), keys(2)
        self.hold(ref, A, hashes)
        for _ in range(2):
            assert self.handler(ref).finish([(hashes[0], b""), (hashes[1], b"2")]) == set(hashes)
        assert [held.result for held in self.handler(ref, B).acquire(hashes).values()] == [b"", b"2"]

    def test_who_lost_a_key_cannot_finish_renew_or_free_it(self):
        ref, hashes = self.begin(), keys(2)
        self.hold(ref, A, hashes[:1], lease_s=SHORT_S)
        self.hold(ref, A, hashes[1:])
        time.sleep(2 * SHORT_S)
        assert self.hold(ref, B, hashes) == [Hold.MINE, Hold.HELD]
        assert self.handler(ref).renew(hashes) == {hashes[1]}
        self.handler(ref).give_up(hashes[:1])
        assert self.handler(ref).finish([(key_hash, b"late") for key_hash in hashes]) == {hashes[1]}
        assert self.handler(ref, B).finish([(hashes[0], b"right")]) == {hashes[0]}
        assert [held.result for held in self.handler(ref, B).acquire(hashes).values()] == [b"right", b"late"]

    def test_a_renewed_lease_holds(self):
        ref, hashes = self.begin(), keys(1)
        self.hold(ref, A, hashes, lease_s=SHORT_S)
        assert self.handler(ref).renew(hashes) == set(hashes)
        time.sleep(2 * SHORT_S)
        assert self.hold(ref, B, hashes) == [Hold.HELD]

    def test_a_key_given_up_is_free_and_a_finished_one_is_not(self):
        ref, hashes = self.begin(), keys(2)
        self.hold(ref, A, hashes)
        self.handler(ref).finish([(hashes[0], None)])
        self.handler(ref).give_up(hashes)
        assert self.hold(ref, B, hashes) == [Hold.DONE, Hold.MINE]

    def test_a_newer_epoch_takes_over_and_the_zombie_cannot_finish(self):
        ref, hashes = self.begin(), keys(250)
        self.hold(ref, A, hashes)
        assert self.hold(self.again(), B, hashes) == [Hold.MINE] * 250
        assert self.hold(ref, A, hashes) == [Hold.HELD] * 250
        with pytest.raises(RunFencedError, match="taken over by another driver"):
            self.hold(ref, A, keys(1))
        assert self.handler(ref).finish([(hashes[0], None)]) == set()

    def test_an_aborted_runs_pending_keys_are_taken_over_and_its_finished_ones_stay(self):
        dead, ref, hashes = self.begin("dead"), self.begin(), keys(2)
        self.hold(dead, A, hashes)
        assert self.hold(ref, B, hashes) == [Hold.HELD] * 2
        self.handler(ref).finish([(hashes[0], b"r")])
        self.ledger.abort(dead)
        assert self.hold(ref, B, hashes) == [Hold.DONE, Hold.MINE]
        assert self.handler(ref).finish([(hashes[1], b"late")]) == set()

    @pytest.mark.parametrize(("end", "error"), [("prepare", RunInputChangedError), ("abort", RunFencedError)])
    def test_a_run_that_is_not_open_acquires_nothing_but_reads_what_is_done(self, end, error):
        ref, hashes = self.begin(), keys(2)
        self.hold(ref, A, hashes[:1])
        self.handler(ref).finish([(hashes[0], b"r")])
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
        ref, hashes = self.begin(), keys(260)
        self.hold(ref, A, hashes)
        # More than the 16 MB of a MySQL packet.
        results = [(key_hash, os.urandom(64 * 1024)) for key_hash in hashes]
        assert self.handler(ref).finish(results) == set(hashes)
        stored = self.handler(ref, B).acquire(hashes[:3]).values()
        assert [held.result for held in stored] == [result for _, result in results[:3]]

    def test_counts_tell_the_states_apart(self):
        ref, hashes = self.begin(), keys(5)
        self.ledger.claim(ref, hashes[:2])
        self.hold(ref, A, hashes[2:])
        self.handler(ref).finish([(hashes[2], b"x" * 9)])
        self.ledger.claim(self.begin("other"), keys(3))
        expected = {ClaimState.OWNED: 2, ClaimState.PENDING: 2, ClaimState.DONE: 1}
        assert claims_of(self.ledger, ref) == expected
