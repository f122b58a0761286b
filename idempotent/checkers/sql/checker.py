"""SqlChecker: leased claims in a table of MySQL, MariaDB, PostgreSQL or SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

from sqlalchemy import Engine
from sqlalchemy.engine import URL

from idempotent.admin import Finding, KeyAdmin
from idempotent.checkers.base import DEFAULT_LEASE_S, DEFAULT_RETENTION_S, AbstractIdempotentChecker
from idempotent.checkers.sql.admin import SqlKeyAdmin
from idempotent.checkers.sql.health import sql_findings
from idempotent.checkers.sql.keytable import KeyTable, key_hash
from idempotent.checkers.sql.store import SqlStore
from idempotent.claims import Claim, ClaimRequest, Completion, Decision, Failure, Released
from idempotent.schema import DEFAULT_TABLE
from idempotent.stores.sql.cursor import DriverConnection


class SqlChecker(AbstractIdempotentChecker):
    """Claims are rows with a lease: one INSERT claims, one UPDATE completes; each is committed at once.

    The effect of a handler is outside the checker's store (HTTP, mail, another database), so a process that dies
    between effect and completion leaves a lapsed claim, and the consumer's `on_expired_lease` decides.

    Args:
        engine_or_url: an SQLAlchemy engine or URL. The checker opens its own connections, one for each
            thread that uses it at the same time; the engine's pool stays free for the application.
        table: the key table; make it with `idempotent.migrations.upgrade(url)`.
        lease_s: seconds a claim lasts without renewal (it is renewed every third of that while the handler
            runs); None: it never lapses (`claim_once`).
        retention_s: seconds a key is remembered, counted from its claim. Make it longer than the time in which your
            broker, or a person with a dead-letter queue, can redeliver a message.

    Raises:
        ConfigurationError: an invalid URL, table name or duration.
        MissingExtraError: the database's driver is not installed.
    """

    def __init__(
        self,
        engine_or_url: Engine | URL | str,
        *,
        table: str = DEFAULT_TABLE,
        lease_s: float | None = DEFAULT_LEASE_S,
        retention_s: float = DEFAULT_RETENTION_S,
    ) -> None:
        super().__init__(lease_s=lease_s, retention_s=retention_s)
        self.store: Final = SqlStore(engine_or_url, table)
        self._connections = self.store.connections

    @cached_property
    def _keys(self) -> KeyTable:
        return self.store.keys(lease_s=self.lease_s, retention_s=self.retention_s)

    def admin(self) -> KeyAdmin:
        return SqlKeyAdmin(self.store)

    def findings(self) -> Sequence[Finding]:
        return sql_findings(self.store)

    def _claim(self, request: ClaimRequest) -> Decision:
        return self._connections.run(self._keys.claiming.claim_one, request)

    def _claim_many(self, requests: Sequence[ClaimRequest]) -> list[Decision]:
        return self._connections.run(self._keys.claiming.claim, requests)

    def _complete(self, completion: Completion) -> bool:
        return self._connections.run(self._keys.complete, completion)

    def _complete_many(self, completions: Sequence[Completion]) -> list[bool]:
        return self._connections.run(self._keys.complete_many, completions)

    def _release(self, claim: Claim, failure: Failure | None) -> Released:
        if failure is None:
            freed = self._connections.run(self._keys.delete, [claim])
            return Released(owned=freed[0])
        return self._connections.run_atomically(self._keys.fail, claim, failure)

    def _release_many(self, releases: Sequence[tuple[Claim, Failure | None]]) -> list[Released]:
        def release(driver: DriverConnection) -> list[Released]:
            answers: dict[bytes, Released] = {}
            free = [claim for claim, failure in releases if failure is None]
            for claim, freed in zip(free, self._keys.delete(driver, free), strict=True):
                answers[key_hash(claim)] = Released(owned=freed)
            for claim, failure in sorted(releases, key=lambda pair: key_hash(pair[0])):
                if failure is not None:
                    answers[key_hash(claim)] = self._keys.fail(driver, claim, failure)
            return [answers[key_hash(claim)] for claim, _ in releases]

        return self._connections.run_atomically(release)

    def _renew_many(self, claims: Sequence[Claim]) -> list[bool]:
        if self.lease_s is None:
            return [True] * len(claims)
        return self._connections.run(self._keys.renew, claims)

    def _garbage_collect(self, limit: int) -> int:
        return self._connections.run(self._keys.delete_expired, limit)

    def close(self) -> None:
        super().close()
        self.store.close()
