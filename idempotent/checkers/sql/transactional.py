"""TransactionalSqlChecker: the key commits in the transaction of the handler's own writes, or not at all."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeGuard, TypeVar, cast

from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.util import greenlet_spawn

from idempotent.admin import Finding, KeyAdmin
from idempotent.checkers.awaiting import Awaiting
from idempotent.checkers.base import DEFAULT_RETENTION_S, AbstractIdempotentChecker
from idempotent.checkers.durations import Durations
from idempotent.checkers.side_calls import OnCancel, ended
from idempotent.checkers.sql.asynchronous.sessions import AsyncSessions, synchronous
from idempotent.checkers.sql.checker import SqlChecker
from idempotent.checkers.sql.failures import FailedAttempt
from idempotent.checkers.sql.findings import sql_findings
from idempotent.checkers.sql.handler_transaction import HandlerSavepoint, State
from idempotent.checkers.sql.recorders import ClaimRecorder, KeyRecorder
from idempotent.checkers.sql.runs import RETRY_S, Runs
from idempotent.checkers.sql.sessions import Sessions
from idempotent.checkers.sql.store import SqlKeyAdmin, SqlStore
from idempotent.checkers.sql.transactions import HandlerTransactions
from idempotent.checkers.transactions import TransactionHooks, record_again
from idempotent.claims import (
    Claim,
    ClaimRequest,
    Completion,
    Decision,
    Failure,
    Guarantee,
    Released,
    Verdict,
)
from idempotent.errors import (
    ConfigurationError,
    DoomedTransactionError,
    StoreBusyError,
    StoreError,
    TransactionEscapedError,
)
from idempotent.keys import NO_KEY
from idempotent.policy import causes
from idempotent.schema import DEFAULT_TABLE
from idempotent.stores.sql.bridge import nothing_awaited
from idempotent.stores.sql.engines import AnyEngine, is_async
from idempotent.stores.sql.faults import Fault
from idempotent.validation import flag, seconds

if TYPE_CHECKING:
    from sqlalchemy.engine import URL
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

_GC_LEASE_S: Final = 60.0
# PostgreSQL and SQLite keep the wait in milliseconds, in 32 bits.
_LONGEST_LOCK_S: Final = 7 * 86400.0
Database: TypeAlias = (
    "Engine | AsyncEngine | URL | str | sessionmaker[Session] | async_sessionmaker[AsyncSession]"
)

T = TypeVar("T")


class TransactionalBase(AbstractIdempotentChecker, TransactionHooks):
    """A checker whose claims commit together with the handlers' writes, or not at all.

    A subclass chooses what is recorded, by `recorder_type`, and documents the arguments.
    """

    group_is_atomic = True
    recorder_type: type[ClaimRecorder]

    def __init__(
        self,
        engine_or_url: Database,
        *,
        table: str = DEFAULT_TABLE,
        schema: str | None = None,
        retention_s: float = DEFAULT_RETENTION_S,
        dead_retention_s: float | None = None,
        lock_timeout_s: float = 1.0,
        savepoints: bool = False,
        strict: bool = False,
    ) -> None:
        super().__init__(lease_s=None, retention_s=retention_s, dead_retention_s=dead_retention_s)
        if flag(savepoints, "savepoints") and self.remembers.by_position:
            raise ConfigurationError(f"savepoints=True cannot go with {type(self).__name__}; remove it")
        sessions, engine = sessions_of(engine_or_url)
        self.store: Final = SqlStore(engine, table, schema=schema, asynchronous=True)
        self.lock_timeout_s: Final = seconds(
            lock_timeout_s, "lock_timeout_s", zero=True, most_s=_LONGEST_LOCK_S
        )
        self.isolates = savepoints
        self.strict: Final = flag(strict, "strict")
        self._recorder = self.recorder_type(self.store, Durations.of(self), self.protocol.events.count)
        self._transactions: Final = HandlerTransactions(self.store, self._recorder, sessions, strict=strict)
        self._runs: Final = Runs(self.protocol, self.store, self._recorder)

    @property
    def command_options(self) -> str:
        return self.store.command_options

    @property
    def store_name(self) -> str:
        return self.store.name

    @property
    def is_async(self) -> bool:
        return self.store.is_async

    @cached_property
    def awaiting(self) -> Awaiting:
        """Runs its steps for tasks.

        Raises:
            ConfigurationError: it has a synchronous engine, and no async handlers.
        """
        if not self.is_async:
            raise ConfigurationError(
                f"this {type(self).__name__} has a synchronous engine, and no async handlers"
            )
        return _InGreenlets(self.protocol)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.TRANSACTIONAL

    def ping(self) -> None:
        self.store.ping(by_position=self.remembers.by_position)

    def findings(self) -> Sequence[Finding]:
        return sql_findings(self.store, transactional=True)

    def _claim(self, request: ClaimRequest) -> Decision:
        # The start of a redelivered message is noted already: who dies in the wait would leave a death of it.
        may_wait = not request.redelivered or self.store.has_one_writer
        try:
            return self._claim_many([request], self.lock_timeout_s if may_wait else 0.0)[0]
        except StoreBusyError:
            # Another transaction held the key (on SQLite: any row of the file) for the whole wait, or the server
            # reported several deadlocks in a row.
            return Decision(Verdict.IN_PROGRESS, retry_after_s=RETRY_S)

    def _claim_many(self, requests: Sequence[ClaimRequest], wait_s: float = 0.0) -> list[Decision]:
        # Without waiting: one busy key must not delay the others. The caller then claims them one by one.
        claim = self.store.bridged(partial(self._transactions.open, wait_s=wait_s))
        return self._runs.begin(requests, claim)

    def _complete(self, completion: Completion) -> bool:
        return self._complete_many([completion])[0]

    def _complete_many(self, completions: Sequence[Completion]) -> list[bool]:
        """Commit the transaction of these claims, which must be all claims still in it."""
        self.store.bridged(self._transactions.commit)(completions)
        return [True] * len(completions)

    def _release(self, claim: Claim, failure: Failure | None) -> Released:
        return self._release_many([(claim, failure)])[0]

    def _release_many(self, releases: Sequence[tuple[Claim, Failure | None]]) -> list[Released]:
        """Roll back; then record each failure in a transaction of its own."""
        # A copy of a message in this process must not run between the rollback and its backoff.
        failing = [claim.key for claim, failure in releases if failure and claim.key is not NO_KEY]
        with self._runs.kept(failing):
            return self._roll_back(releases)

    def _roll_back(self, releases: Sequence[tuple[Claim, Failure | None]]) -> list[Released]:
        for claim, _ in releases:
            claim.transaction.close()
        try:
            stored = self._transactions.stored(
                [
                    claim
                    for claim, _ in releases
                    if claim.key is not NO_KEY and claim.transaction.state is not State.COMMITTED
                ]
            )
        except StoreError:
            if any(failure for _, failure in releases):
                raise
            stored = set()  # nothing else is left to do: the database rolls back what it has lost
        return [
            self.store.connections.run_atomically(self._recorder.mark_committed_dead, claim)
            if claim in stored
            else self._recorder.count_failure(FailedAttempt(claim, failure))
            if failure and claim.key is not NO_KEY
            else Released(owned=True)
            for claim, failure in releases
        ]

    def ignore(self, request: ClaimRequest, claim: Claim) -> None:
        """Roll back the handler's writes, and record the key in a transaction of its own."""
        if claim.transaction.refused:
            raise TransactionEscapedError(claim.transaction.escaped)
        claim.transaction.close()
        self._transactions.demand_none_stored([claim])
        record_again(self.protocol, request, claim)

    def claim_nothing(self) -> Claim:
        (decision,) = self.store.bridged(self._transactions.open)((), self.lock_timeout_s)
        assert decision.claim is not None, "a transaction without a key waits for no other"
        return decision.claim

    def isolated(self, claim: Claim, session_type: type | None) -> AbstractContextManager[None]:
        """A savepoint around one handler of a group, with `savepoints=True`."""
        return HandlerSavepoint(claim.transaction, session_type)

    def flush(self, claim: Claim) -> None:
        claim.transaction.flush()

    def interrupted(self, claim: Claim) -> None:
        claim.transaction.close(reuse=False)

    def committed(self, completions: Sequence[Completion]) -> bool:
        return self._transactions.committed([completion.claim for completion in completions])

    def forget(self, claim: Claim) -> None:
        claim.transaction.demand_open()  # else the others cannot go on in it either
        self.store.bridged(self._recorder.forget)(claim.transaction.driver, claim)

    def is_transient(self, claim: Claim, error: Exception) -> bool:
        """Whether the database rolled back the handler's transaction, or the connection was lost."""
        is_undone = self.store.bridged(self._transactions.is_undone)
        return isinstance(error, DoomedTransactionError) or is_undone(claim.transaction, [claim], error)

    def has_lost_connection(self, error: Exception) -> bool:
        return any(self._transactions.fault(cause) is Fault.DISCONNECTED for cause in causes(error))

    def check_argument(self, kind: type) -> None:
        self._transactions.sessions.check(kind)

    def handler_argument(self, claim: Claim, kind: type) -> Any:
        return claim.transaction.argument(kind)

    @cached_property
    def _leader(self) -> SqlChecker:
        # A transaction would lock out the deletes; a leased key does not.
        return SqlChecker(
            self.store.engine, table=self.store.table, schema=self.store.schema, lease_s=_GC_LEASE_S
        )

    def _garbage_collect(self, limit: int) -> int:
        return self.store.connections.run(self._recorder.delete_expired, limit)

    def close(self) -> None:
        super().close()
        self._transactions.close()
        self._leader.close()
        self.store.close()


class TransactionalSqlChecker(TransactionalBase):
    """One transaction contains the key's INSERT and the handler's writes, so both commit or neither.

    The handler gets the transaction as its second parameter, a `Session`, `Connection`, `AsyncSession` or
    `AsyncConnection` by its annotation, and writes only through it. The handler must not end the transaction; an
    exception always rolls back its writes.

    A group claims all its keys in one statement, runs its handlers, and commits once. If one of them fails,
    everything is rolled back and each message runs again in a transaction of its own; with `savepoints=True` a
    failed handler is undone alone.

    Args:
        engine_or_url: an SQLAlchemy engine, URL or `sessionmaker`; the database of the handlers' writes. With an
            AsyncEngine, an `async_sessionmaker` or the URL of an asyncio driver, the handlers are `async def`.
        table: the key table, in the same database; make it with `idempotent.migrations.upgrade(url)`.
        schema: where the tables are (MySQL: the database); None: where a new connection finds them.
        retention_s: seconds a key is remembered, counted from its claim.
        dead_retention_s: seconds a DEAD key is remembered; None: until a person resolves it.
        lock_timeout_s: seconds a claim waits for another transaction that holds its key, before it answers
            IN_PROGRESS; a redelivered message does not wait. On SQLite the file's busy timeout (the engine's `timeout`)
            applies instead.
        savepoints: isolate the handlers of a group from each other (half as fast).
        strict: also detect a transaction that was ended in a way that SQLAlchemy does not see (two more round trips).

    Raises:
        ConfigurationError: an invalid URL, table name or duration.
        MissingExtraError: the database's driver is not installed.
    """

    recorder_type = KeyRecorder

    def admin(self) -> KeyAdmin:
        return SqlKeyAdmin(self.store, self.retention_s)


def sessions_of(database: Database) -> tuple[Sessions, AnyEngine]:
    """The handlers' Sessions, and the engine or URL of the database.

    Raises:
        ConfigurationError: a sessionmaker without an engine, with several, or with two-phase commit.
    """
    if _makes_async(database):
        inner = synchronous(database)
        return AsyncSessions(database, inner), _engine_of(inner, "async_sessionmaker")
    if isinstance(database, sessionmaker):
        engine = _engine_of(database, "sessionmaker")
        if engine.dialect.is_async:
            raise ConfigurationError(
                "the sessionmaker has the engine of an AsyncEngine: give the checker async_sessionmaker(async_engine)"
            )
        return Sessions(database), engine
    plain = AsyncSessions.plain() if is_async(database) else Sessions(sessionmaker())
    return plain, cast("AnyEngine", database)


def _makes_async(database: object) -> TypeGuard[async_sessionmaker[AsyncSession]]:
    # Imported by the application, if it has one.
    module = sys.modules.get("sqlalchemy.ext.asyncio")
    return module is not None and isinstance(database, module.async_sessionmaker)


def _engine_of(factory: sessionmaker[Session], name: str) -> Engine:
    """The only engine of a factory.

    Raises:
        ConfigurationError: it has none, or several, or the transaction would not be the checker's.
    """
    bind = factory.kw.get("bind")
    if not isinstance(bind, Engine):
        raise ConfigurationError(
            f"the {name} has no engine: write {name}(engine), with one engine, because key and effect "
            "commit in one transaction"
        )
    other = _other_engine(factory, bind)
    if other is not None:
        raise ConfigurationError(
            f"the {name} sends statements to {other!r} too, where they would not commit together with the key: "
            f"give the checker a {name}(engine) of its own, without binds= and without a get_bind() that "
            "returns another engine"
        )
    if "isolation_level" in (factory.kw.get("execution_options") or {}):
        raise ConfigurationError(
            f"the {name} has an isolation_level in its execution_options, but the transaction begins with the "
            "key: set it on the engine, create_engine(url, isolation_level=...)"
        )
    if factory().twophase:
        raise ConfigurationError(
            f"the {name} has twophase=True, but key and effect commit in one transaction of one database: "
            f"give the checker a {name}(engine) without it"
        )
    return bind


def _other_engine(factory: sessionmaker[Session], engine: Engine) -> object:
    """An engine or connection other than `engine` to which the Sessions send statements, if that can be seen now."""
    binds = [*(factory.kw.get("binds") or {}).values()]
    if factory.class_.get_bind is not Session.get_bind:
        with contextlib.suppress(Exception):  # it may need more to answer, such as the context of a request
            binds.append(factory().get_bind())
    return next((bind for bind in binds if bind is not engine), None)


class _InGreenlets(Awaiting):
    """Runs each step in a greenlet of the calling task; its statements are awaited on the task's event loop.

    A step that is cancelled closes its transaction, and terminates its connection: it may hold an unread answer.
    """

    async def call(self, function: Callable[..., T], *arguments: Any, on_cancel: OnCancel | None = None) -> T:
        # A task of its own: a cancellation must not reach the driver in the middle of a COMMIT.
        return await ended(greenlet_spawn(function, *arguments), on_cancel)

    async def begin(self, function: Callable[..., T], *arguments: Any) -> T:
        return await greenlet_spawn(function, *arguments)

    def later(self, function: Callable[..., object], *arguments: Any) -> None:
        # Not later, but now: what would be awaited fails, and the transaction's connection is terminated.
        with nothing_awaited(), contextlib.suppress(Exception):
            function(*arguments)
