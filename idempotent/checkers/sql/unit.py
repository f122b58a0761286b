"""Unit: the transaction of a group's keys and its handlers' effects. Only the checker may end it."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, TypeAlias
from weakref import WeakSet

from sqlalchemy import Connection, Dialect, Engine, event
from sqlalchemy.engine import ExceptionContext, ExecutionContext, RootTransaction
from sqlalchemy.orm import Session, sessionmaker

from idempotent.errors import ConfigurationError, DoomedTransactionError, TransactionEscapedError
from idempotent.stores.sql.cursor import execute
from idempotent.stores.sql.detached import DetachedConnections
from idempotent.stores.sql.dialects import SqlDialect
from idempotent.stores.sql.faults import Fault, fault_of

SessionFactory: TypeAlias = "sessionmaker[Session] | Callable[..., Session]"

_INFO: Final = "idempotent_unit"
_GUARD: Final = "idempotent_guard"
# Statements that end a transaction, by their first words. ROLLBACK TO a savepoint does not end it.
# https://dev.mysql.com/doc/refman/8.0/en/implicit-commit.html
_ENDS: Final = (
    r"commit|rollback(?!\s+(?:work\s+)?to\b)|abort|end|begin|start\s+transaction|prepare\s+transaction"
)
_IMPLICIT: Final = (
    r"|create(?!\s+temporary\s+table)|alter|drop(?!\s+temporary\s+table)|truncate|rename|grant|revoke|lock\s+tables?"
    r"|unlock\s+tables?|analyze|optimize|repair|flush|set\s+(?:session\s+|@@(?:session\.)?)?autocommit"
)
_BLANK: Final = r"(?:[\s;]|/\*(?:[^*]|\*(?!/))*\*/|--[^\n]*\n|#[^\n]*\n)*"
_ENDING: Final = {
    "mysql": re.compile(rf"{_BLANK}(?:{_ENDS}{_IMPLICIT})\b", re.IGNORECASE),
    "postgresql": re.compile(rf"{_BLANK}(?:{_ENDS})\b", re.IGNORECASE),
    "sqlite": re.compile(rf"{_BLANK}(?:{_ENDS})\b", re.IGNORECASE),
}

# After such an error the server has rolled the transaction back.
UNDONE: Final = (Fault.ABORTED, Fault.LOCKED, Fault.DISCONNECTED)


class Unit:
    """One open transaction on one connection.

    Args:
        connections: lends the connection.
        dialect: the properties of the database.
        factory: makes the handlers' Session on the connection.
        strict: also set a savepoint after the claims, and check at the end that it still exists: detects a raw cursor
            that ended the transaction (two more round trips).

    Attributes:
        arguments: the handlers' second parameters made so far, by the type that the handler asks for.
        doomed: the error after which the server rolled the transaction back.
        escaped: how a handler tried to end the transaction.
        committed: `commit` has succeeded.

    Raises:
        ConfigurationError: the engine is in AUTOCOMMIT, so there would be no transaction.
    """

    def __init__(
        self, connections: DetachedConnections, dialect: SqlDialect, factory: SessionFactory, *, strict: bool
    ) -> None:
        self._dialect = dialect
        self._factory = factory
        self._strict = strict
        self._ending = _ENDING[dialect.name]
        self._may_end = False
        self._guarded = False
        self._keyed = False
        self.committed = False
        self._closed = False
        self._session: Session | None = None
        self.arguments: Final[dict[type, Session | Connection]] = {}
        self.doomed: str | None = None
        self.escaped: str | None = None
        self._connections = connections
        self._detached: Final = connections.take()
        self.connection: Final = self._detached.connection
        self.driver: Final = self._detached.driver
        try:
            _listen(self.connection.engine)
            self._transaction = _UnitTransaction(self.connection)
            if dialect.name == "sqlite" and not dialect.in_transaction(self.driver.raw):
                # pysqlite begins too late, and its savepoints commit. BEGIN IMMEDIATE also takes the write lock.
                execute(self.driver, "BEGIN IMMEDIATE")
        except BaseException:
            self.close(reuse=False)
            raise

    def guard(self, *, keyed: bool = True) -> None:
        """Forbid handlers to end the transaction: from now on only `commit` and `close` may.

        Args:
            keyed: the unit claimed keys, so the server's transaction has begun.

        Raises:
            ConfigurationError: the connection is in AUTOCOMMIT, so it has no transaction.
        """
        self._keyed = keyed
        if self._dialect.autocommits(self.driver.raw):
            raise ConfigurationError(
                "the engine is in AUTOCOMMIT: key and effect cannot commit together. "
                "Give the checker an engine without isolation_level='AUTOCOMMIT'"
            )
        if keyed and self._strict:
            execute(self.driver, f"SAVEPOINT {_GUARD}")
        self.connection.info[_INFO] = self
        self._guarded = True

    def argument(self, kind: type) -> Session | Connection:
        """The unit's Connection or its one Session, for the handler."""
        taken = self.connection if issubclass(kind, Connection) else self.session
        self.arguments[kind] = taken
        return taken

    @property
    def session(self) -> Session:
        """The Session of all handlers of this unit."""
        if self._session is None:
            self._session = self._factory(bind=self.connection, join_transaction_mode="control_fully")
        return self._session

    def savepoint(self, kind: type | None) -> AbstractContextManager[object]:
        """A savepoint on the handler's Session or Connection; an exception rolls back to it."""
        if kind is not None and issubclass(kind, Session):
            return self.session.begin_nested()
        return self.connection.begin_nested()

    def flush(self) -> None:
        """Send the Session's pending changes."""
        if self._session is not None:
            self._session.flush()

    @property
    def undone(self) -> bool:
        """Whether the server has undone the transaction."""
        if not self.doomed:
            return False
        # PostgreSQL refuses everything until a rollback, so an open transaction has recovered by a savepoint.
        return self._dialect.name != "postgresql" or not self._dialect.in_transaction(self.driver.raw)

    def demand_alive(self) -> None:
        """Check that the transaction in which the keys were claimed is still open.

        Raises:
            DoomedTransactionError: the server has rolled it back; the message can run again.
            TransactionEscapedError: a handler ended it.
        """
        if self.undone:
            raise DoomedTransactionError(f"the server has undone the transaction: {self.doomed}")
        if self.escaped:
            raise TransactionEscapedError(self.escaped)
        if not self._transaction.is_active:
            raise TransactionEscapedError(
                "the handler rolled its transaction back and returned; raise an exception instead, "
                "or use session.begin_nested() for work that may fail"
            )
        if self._keyed and not self._dialect.in_transaction(self.driver.raw):
            raise TransactionEscapedError(
                "the transaction ended while the handler ran: the handler ended it with a raw cursor, or ignored an "
                "error after which the server refuses all statements; use session.begin_nested() for work that may fail"
            )
        if self._keyed and self._strict:
            try:
                execute(self.driver, f"RELEASE SAVEPOINT {_GUARD}")
            except Exception as error:
                raise TransactionEscapedError(
                    "the savepoint set before the handler is gone: the handler ended the transaction"
                ) from error

    def commit(self) -> None:
        """Commit. Exceptions of the driver and of the application's session events pass through."""
        self._may_end = True
        if self._session is not None and self._session.in_transaction():
            self._session.commit()  # so that the application's session events fire
        if self._transaction.is_active:
            self._transaction.commit()
        self.committed = True

    def close(self, *, reuse: bool = True) -> None:
        """Roll back what is not committed and give the connection back. Never raises; idempotent.

        Args:
            reuse: whether the connection may serve another unit. Not after an interrupt: it may hold an unread answer.
        """
        if self._closed:
            return
        self._closed = True
        self._may_end = True
        try:
            if self._guarded:
                self.connection.info.pop(_INFO, None)
            if self._session is not None:
                self._session.close()
            reusable = self.committed or self._transaction.is_active
            if not self.committed:
                # On the driver's connection too: after a refused commit() SQLAlchemy considers the transaction
                # finished, but the server would keep its locks until it notices the closed connection.
                if self._transaction.is_active:
                    self._transaction.rollback()
                self.driver.raw.rollback()
            reusable = reuse and reusable and self._detached.intact
        except Exception:
            reusable = False
        if reusable:
            self._connections.put(self._detached)
        else:
            self._connections.discard(self._detached)

    def refuse_ending(self, statement: str) -> None:
        """Refuse a statement that would end the transaction. Called before every statement on the connection.

        Raises:
            TransactionEscapedError: a handler sent such a statement.
        """
        if not self._may_end and self._ending.match(statement):
            self.refuse(" ".join(statement.split()[:2]).upper())

    def refuse(self, what: str) -> None:
        """Refuse `what`, by which a handler tries to end the transaction.

        Raises:
            TransactionEscapedError: the unit itself is not ending the transaction.
        """
        if not self._may_end:
            self.escaped = (
                f"{what} inside a transactional handler: the checker commits the handler's work together with "
                "its deduplication key. Remove it; raise an exception to roll back"
            )
            raise TransactionEscapedError(self.escaped)


def _unit_on(connection: Connection) -> Unit | None:
    """The unit whose handlers use a connection; None: no handler may be using it."""
    unit: Unit | None = connection.info.get(_INFO)
    return unit


class _UnitTransaction(RootTransaction):
    """Like the transaction of `connection.begin()`, but only the unit commits it.

    An event listener for "commit" would work too, but with any listener of `ConnectionEvents` the engine spends 10 us
    more on each statement; an INSERT takes 33 to 44 us in SQLAlchemy.
    """

    __slots__ = ()

    def commit(self) -> None:
        unit = _unit_on(self.connection)
        if unit is not None:
            unit.refuse("commit()")
        super().commit()


_listened: Final[WeakSet[Dialect]] = WeakSet()


def _listen(engine: Engine) -> None:
    """Listen to the statements and errors of the engine's connections, once. `Connection.info` holds the unit."""
    dialect = engine.dialect
    if dialect in _listened:
        return
    _listened.add(dialect)

    @event.listens_for(dialect, "do_execute")
    @event.listens_for(dialect, "do_executemany")
    def _statement(_cursor: Any, statement: str, _parameters: Any, context: ExecutionContext) -> None:
        unit = _unit_on(context.root_connection)
        if unit is not None:
            unit.refuse_ending(statement)

    @event.listens_for(dialect, "do_execute_no_params")
    def _bare_statement(cursor: Any, statement: str, context: ExecutionContext) -> None:
        _statement(cursor, statement, None, context)

    @event.listens_for(dialect, "handle_error")
    def _error(context: ExceptionContext) -> None:
        unit = None if context.connection is None else _unit_on(context.connection)
        # After a deadlock MySQL rolls back, and the next statement begins a new transaction: if the handler ignores the
        # error, that must not be committed. (With innodb_rollback_on_timeout, a lock wait has the same effect.)
        if unit is not None and fault_of(context.original_exception, engine) in UNDONE:
            unit.doomed = " ".join(str(context.original_exception).split())
