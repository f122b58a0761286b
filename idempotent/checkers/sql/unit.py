"""Unit: the transaction that holds a group's keys and its handlers' effects, and nothing else may end it."""

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
# What ends a transaction behind the checker's back, by the first words of the statement. ROLLBACK TO a savepoint
# does not. https://dev.mysql.com/doc/refman/8.0/en/implicit-commit.html
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

_UNDOING: Final = (Fault.ABORTED, Fault.LOCKED, Fault.DISCONNECTED)


class Unit:
    """One open transaction on one connection.

    Args:
        connections: where the connection comes from, and goes to when the transaction is over.
        dialect: what differs between the databases.
        factory: makes the handlers' Session on the connection.
        strict: also set a savepoint after the claims and demand it at the end, which catches what a raw
            cursor does (two round trips).

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
        self._committed = False
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
                # pysqlite begins late and its savepoints commit; take the write lock before the claim.
                execute(self.driver, "BEGIN IMMEDIATE")
        except BaseException:
            self.close()
            raise

    def guard(self, *, keyed: bool = True) -> None:
        """From here on handlers run, and only `commit` and `close` end the unit.

        Args:
            keyed: keys were claimed in it, so the server's transaction has begun.

        Raises:
            ConfigurationError: the connection is in AUTOCOMMIT, so there is no transaction.
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
        """What the handler takes: the unit's Connection, or its one Session."""
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
        """A savepoint that an exception rolls back to, on what the handler writes through."""
        if kind is not None and issubclass(kind, Session):
            return self.session.begin_nested()
        return self.connection.begin_nested()

    def flush(self) -> None:
        """Send what the Session still holds."""
        if self._session is not None:
            self._session.flush()

    @property
    def committed(self) -> bool:
        """Whether `commit` has succeeded."""
        return self._committed

    @property
    def undone(self) -> bool:
        """Whether the server has undone the transaction."""
        if not self.doomed:
            return False
        # PostgreSQL refuses everything until a rollback, so an open transaction has recovered by a savepoint.
        return self._dialect.name != "postgresql" or not self._dialect.in_transaction(self.driver.raw)

    def demand_alive(self) -> None:
        """Make sure that the transaction the keys were claimed in is the one that is open.

        Raises:
            DoomedTransactionError: the server has undone it; nothing is lost, run it again.
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
                "the handler's transaction is over before its time: it ended it with a raw cursor, or swallowed an "
                "error after which the server accepts nothing more; use session.begin_nested() for work that may fail"
            )
        if self._keyed and self._strict:
            try:
                execute(self.driver, f"RELEASE SAVEPOINT {_GUARD}")
            except Exception as error:
                raise TransactionEscapedError(
                    "the savepoint set before the handler is gone: the handler ended the transaction"
                ) from error

    def commit(self) -> None:
        """Commit. Whatever it raises is the driver's word on what happened."""
        self._may_end = True
        if self._session is not None and self._session.in_transaction():
            self._session.commit()  # so that the application's session events fire
        if self._transaction.is_active:
            self._transaction.commit()
        self._committed = True

    def close(self) -> None:
        """Roll back what is not committed and give the connection back. Never raises; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._may_end = True
        try:
            if self._guarded:
                self.connection.info.pop(_INFO, None)
            if self._session is not None:
                self._session.close()
            reusable = self._committed or self._transaction.is_active
            if not self._committed:
                # By hand: after a refused commit() SQLAlchemy takes the transaction for finished, and it holds its
                # locks until the server notices that the connection is closed.
                if self._transaction.is_active:
                    self._transaction.rollback()
                self.driver.raw.rollback()
            reusable = reusable and self._detached.intact
        except Exception:
            reusable = False
        if reusable:
            self._connections.put(self._detached)
        else:
            self._connections.discard(self._detached)

    def refuse_ending(self, statement: str) -> None:
        """Called before every statement on the connection.

        Raises:
            TransactionEscapedError: it would end the transaction.
        """
        if not self._may_end and self._ending.match(statement):
            self.refuse(" ".join(statement.split()[:2]).upper())

    def refuse(self, what: str) -> None:
        """A handler tries to end the transaction.

        Raises:
            TransactionEscapedError: unless the unit itself is ending it.
        """
        if not self._may_end:
            self.escaped = (
                f"{what} inside a transactional handler: the checker commits the handler's work together with "
                "its deduplication key. Remove it; raise an exception to roll back"
            )
            raise TransactionEscapedError(self.escaped)


def _unit_on(connection: Connection) -> Unit | None:
    """The unit whose handlers run on a connection."""
    unit: Unit | None = connection.info.get(_INFO)
    return unit


class _UnitTransaction(RootTransaction):
    """What `connection.begin()` would make, but only the unit commits it.

    A listener for "commit" would do as well, but an engine with any listener of `ConnectionEvents` takes the long way
    with each statement: 10 us of the 33 to 44 that an INSERT takes in SQLAlchemy.
    """

    __slots__ = ()

    def commit(self) -> None:
        unit = _unit_on(self.connection)
        if unit is not None:
            unit.refuse("commit()")
        super().commit()


_listened: Final[WeakSet[Dialect]] = WeakSet()


def _listen(engine: Engine) -> None:
    """Watch the statements and errors of the engine's connections, once; the unit is in their `info`."""
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
        # MySQL rolls back at a deadlock, and the next statement begins a new transaction: a handler that swallows the
        # error must not commit what follows. (With innodb_rollback_on_timeout, a lock wait does the same.)
        if unit is not None and fault_of(context.original_exception, engine) in _UNDOING:
            unit.doomed = " ".join(str(context.original_exception).split())
