"""SqlChecker: leased claims in a table of MySQL, MariaDB, PostgreSQL or SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Final

from sqlalchemy import Engine
from sqlalchemy.engine import URL

from idempotent.admin import Finding, KeyAdmin
from idempotent.checkers.base import DEFAULT_LEASE_S, DEFAULT_RETENTION_S, AbstractIdempotentChecker
from idempotent.checkers.durations import Durations
from idempotent.checkers.sql.failures import FailedAttempt
from idempotent.checkers.sql.findings import sql_findings
from idempotent.checkers.sql.keytable import AT_ONCE, KeyTable
from idempotent.checkers.sql.store import SqlKeyAdmin, SqlStore
from idempotent.claims import Claim, ClaimRequest, Completion, Decision, Failure, Released, Verdict
from idempotent.errors import StoreBusyError
from idempotent.schema import DEFAULT_TABLE
from idempotent.stores.sql.answers import LEAST_ANSWER_S
from idempotent.stores.sql.cursor import DriverConnection
from idempotent.stores.sql.sockets import LONGEST_S
from idempotent.validation import seconds_or_none

_LOCKED_RETRY_S: Final = 1.0


class SqlChecker(AbstractIdempotentChecker):
    """Claims are rows with a lease: one INSERT claims, one UPDATE completes; each is committed at once.

    The effect of a handler is outside the checker's store (HTTP, mail, another database), so a process that dies
    between effect and completion leaves a lapsed claim, and the consumer's `on_expired_lease` decides.

    Args:
        engine_or_url: an SQLAlchemy engine or URL. The checker opens its own connections, one for each
            thread that uses it at the same time; the engine's pool stays free for the application.
        table: the key table; make it with `idempotent.migrations.upgrade(url)`.
        schema: where the tables are (MySQL: the database); None: where a new connection finds them.
        lease_s: seconds a claim lasts without renewal (it is renewed every third of that while the handler
            runs); None: it never lapses (`claim_once`).
        retention_s: seconds a key is remembered, counted from its claim, or from its completion if less than half of
            that time was left then. Make it longer than the time in which your broker, or a person with a dead-letter
            queue, can redeliver a message.
        dead_retention_s: seconds a DEAD key is remembered; None: until a person resolves it.
        combine: claims and completions of single messages that arrive while several statements are under way go
            together in the next one; False: each is a statement of its own.

    Raises:
        ConfigurationError: an invalid URL, table name or duration.
        MissingExtraError: the database's driver is not installed.
    """

    def __init__(
        self,
        engine_or_url: Engine | URL | str,
        *,
        table: str = DEFAULT_TABLE,
        schema: str | None = None,
        lease_s: float | None = DEFAULT_LEASE_S,
        retention_s: float = DEFAULT_RETENTION_S,
        dead_retention_s: float | None = None,
        combine: bool = True,
    ) -> None:
        lease_s = seconds_or_none(lease_s, "lease_s")
        # A dead connection must end before the lease that is renewed on it.
        silence_s = LONGEST_S if lease_s is None else min(LONGEST_S, lease_s / 3)
        self.store: Final = SqlStore(engine_or_url, table, silence_s, schema=schema)
        super().__init__(
            lease_s=lease_s,
            retention_s=retention_s,
            dead_retention_s=dead_retention_s,
            combine=combine,
            one_writer=self.store.has_one_writer,
        )
        answer_s = max(silence_s, LEAST_ANSWER_S)
        self._run: Final = partial(self.store.connections.run, answer_s=answer_s)
        self._run_atomically: Final = partial(self.store.connections.run_atomically, answer_s=answer_s)

    @cached_property
    def _keys(self) -> KeyTable:
        dialect, count = self.store.connections.dialect, self.protocol.events.count
        return KeyTable(dialect, self.store.table, Durations.of(self), count, waits_briefly=True)

    @property
    def command_options(self) -> str:
        return self.store.command_options

    @property
    def store_name(self) -> str:
        return self.store.name

    def admin(self) -> KeyAdmin:
        return SqlKeyAdmin(self.store, self.retention_s)

    def ping(self) -> None:
        self.store.ping()

    def findings(self) -> Sequence[Finding]:
        return sql_findings(self.store)

    def _claim(self, request: ClaimRequest) -> Decision:
        if not request.waits:
            return self._run(self._keys.claim_one, request, AT_ONCE, retry_locked=False)
        try:
            return self._run(self._keys.claim_one, request)
        except StoreBusyError:
            if self.store.has_one_writer:
                raise  # any other writer of the file, for seconds
            # A transaction holds the key, as those of a TransactionalSqlChecker do.
            return Decision(Verdict.IN_PROGRESS, retry_after_s=_LOCKED_RETRY_S)

    def _claim_many(self, requests: Sequence[ClaimRequest]) -> list[Decision]:
        if requests[0].waits:
            return self._run(self._keys.claim, requests)
        return self._run(self._keys.claim, requests, AT_ONCE, retry_locked=False)

    def _complete(self, completion: Completion) -> bool:
        return self._run(self._keys.complete, completion)

    def _complete_many(self, completions: Sequence[Completion]) -> list[bool]:
        # A locked key delays the others once; then each is completed alone.
        return self._run(self._keys.complete_many, completions, retry_locked=False)

    def _release(self, claim: Claim, failure: Failure | None) -> Released:
        return self._release_many([(claim, failure)])[0]

    def _release_many(self, releases: Sequence[tuple[Claim, Failure | None]]) -> list[Released]:
        in_order = sorted(releases, key=lambda pair: pair[0].key.hash)
        failed_attempts = [
            FailedAttempt(claim, failure) for claim, failure in in_order if failure is not None
        ]
        free = [claim for claim, failure in releases if failure is None]

        def release(driver: DriverConnection) -> list[Released]:
            answers: dict[Claim, Released] = {}
            for claim, freed in zip(free, self._keys.delete(driver, free), strict=True):
                answers[claim] = Released(owned=freed)
            for failed in failed_attempts:
                answers[failed.claim] = self._keys.fail(driver, failed)
            return [answers[claim] for claim, _ in releases]

        if failed_attempts:
            return self._run_atomically(release)
        return self._run(release)

    def _renew_many(self, claims: Sequence[Claim]) -> list[bool]:
        return self._run(self._keys.renew, claims, retry_locked=False)

    def _reconnect(self) -> None:
        self.store.connections.close()

    def _garbage_collect(self, limit: int) -> int:
        return self.store.connections.run(self._keys.delete_expired, limit)

    def close(self) -> None:
        super().close()
        self.store.close()
