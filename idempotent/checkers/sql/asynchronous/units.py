"""AsyncUnits and AsyncCommits: begin and end the transactions of async handlers, in greenlets."""

from __future__ import annotations

from collections.abc import Sequence

from idempotent.checkers.sql.asynchronous.sessions import AsyncSessions
from idempotent.checkers.sql.asynchronous.unit import AsyncUnit
from idempotent.checkers.sql.committing import Commits
from idempotent.checkers.sql.opening import Units
from idempotent.checkers.sql.unit import Unit
from idempotent.claims import Claim, ClaimRequest, Completion, Decision
from idempotent.stores.sql.loops import LoopConnections


class AsyncUnits(Units):
    """Units that are opened in the caller's greenlet, or for a plain thread on the store's private loop."""

    _kind = LoopConnections

    def open(self, requests: Sequence[ClaimRequest], wait_s: float) -> list[Decision]:
        return self._store.bridge.run(super().open, requests, wait_s)

    def open_empty(self) -> Claim:
        return self._store.bridge.run(super().open_empty)

    def forget(self, claim: Claim) -> None:
        self._store.bridge.run(super().forget, claim)

    def _begin(self) -> AsyncUnit:
        dialect = self._store.connections.dialect
        assert isinstance(self.sessions, AsyncSessions)
        return AsyncUnit(self._store.bridge, self._connections, dialect, self.sessions, strict=self._strict)


class AsyncCommits(Commits):
    """Commits in the caller's greenlet, or for a plain thread on the store's private loop."""

    def commit(self, completions: Sequence[Completion]) -> None:
        self._store.bridge.run(super().commit, completions)

    def is_undone(self, unit: Unit, claims: Sequence[Claim], error: Exception) -> bool:
        return self._store.bridge.run(super().is_undone, unit, claims, error)
