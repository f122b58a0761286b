"""What the tests of every ledger share."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest

from idempotent.adapters.spark.ledger import OnConflict, RunLedger, RunState
from idempotent.adapters.spark.ledger.handler_claims import HandlerClaims
from idempotent.adapters.spark.ledger.run_claims import RowVerdict, RunClaims
from idempotent.adapters.spark.ledger.runs import RunRef
from tests.adapters.spark.ledger.ledgers import Place, open_place

LONG_S = 300.0
SHORT_S = 0.005
# Longer than this has passed between any two steps of a test that sleeps for SHORT_S.
TINY_RETENTION_S = 0.001
A, B = b"a" * 16, b"b" * 16


def keys(count: int) -> list[bytes]:
    return [os.urandom(20) for _ in range(count)]


class LedgerContract:
    kind: ClassVar[str]
    place: Place
    ledger: RunLedger

    @pytest.fixture(autouse=True)
    def _place(self, request: pytest.FixtureRequest) -> Iterator[None]:
        with contextmanager(open_place)(self.kind, request) as self.place:
            self.ledger = self.place.ledger()
            yield

    def begin(self, run_id: str = "r1", lease_s: float = LONG_S, **options) -> RunRef:
        return self.ledger.begin("orders", run_id, lease_s=lease_s, **options).ref

    def again(self, run_id: str = "r1", lease_s: float = LONG_S, **options) -> RunRef:
        """Another driver's attempt, which fences the one before."""
        return self.begin(run_id, lease_s, takeover=True, **options)

    def state(self, ref: RunRef) -> RunState:
        return self.ledger.row(ref.token).state

    def committed(self, run_id: str, hashes: list[bytes]) -> RunRef:
        ref = self.begin(run_id)
        assert set(self.claims(ref).decide(hashes)) == {RowVerdict.NEW}
        self.ledger.prepare(ref)
        self.ledger.commit(ref)
        return ref

    def lapsed(self, run_id: str = "dead") -> RunRef:
        ref = self.begin(run_id, lease_s=SHORT_S)
        time.sleep(2 * SHORT_S)
        return ref

    def forgetful(self) -> RunLedger:
        """Another ledger over the same store, for which everything that was done so far is too old."""
        time.sleep(SHORT_S)
        return self.place.ledger(retention_s=TINY_RETENTION_S)

    def short_lived(self, run_id: str) -> RunRef:
        """A run whose lease and retention are over."""
        ref = self.forgetful().begin("orders", run_id, lease_s=TINY_RETENTION_S / 10).ref
        time.sleep(SHORT_S)
        return ref

    def handler(self, ref: RunRef, attempt: bytes = A, lease_s: float = LONG_S) -> HandlerClaims:
        return HandlerClaims(self.ledger, ref, lease_s, attempt)

    def claims(self, ref: RunRef, on_conflict: OnConflict = OnConflict.FAIL, **options) -> RunClaims:
        return RunClaims(self.ledger, ref, on_conflict=on_conflict, **options)
