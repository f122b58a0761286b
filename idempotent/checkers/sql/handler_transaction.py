"""HandlerTransaction: the transaction of a group's keys and its handlers' effects. Only the checker may end it."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum, IntEnum, auto
from types import TracebackType
from typing import Any, Final, NoReturn

from sqlalchemy import Connection, NestedTransaction
from sqlalchemy.orm import Session, SessionTransaction

from idempotent.checkers.sql.sessions import Sessions
from idempotent.checkers.sql.watching import (
    TransactionEnd,
    WatchedTransaction,
    classify_transaction_end,
    listen,
    unwatch,
    watch,
)
from idempotent.errors import ConfigurationError, DoomedTransactionError, TransactionEscapedError
from idempotent.stores.sql.cursor import execute
from idempotent.stores.sql.detached import DetachedConnections
from idempotent.stores.sql.dialects import SqlDialect
from idempotent.stores.sql.faults import Fault, explained, fault_of, lacks_what_it_prepared

_GUARD: Final = "idempotent_guard"
_IN_FAILED_TRANSACTION: Final = "25P02"
_OUTSIDE: Final = (
    "the handler went on, or returned, without the savepoint that was set for it: it ignored an error of flush(), or "
    "rolled it back or released it. Let the exception pass, or use session.begin_nested() for work that may fail"
)
# After such an error the server has rolled the transaction back, or had no lock or no room for the statement.
UNDONE: Final = (Fault.ABORTED, Fault.LOCKED, Fault.FULL, Fault.DISCONNECTED, Fault.CROWDED)


class State(Enum):
    """How far a handler's transaction is. Each state is followed by the next one, or by ROLLED_BACK."""

    CLAIMING = auto()
    """The checker claims the keys."""
    HANDLING = auto()
    """Handlers run. They may not end it."""
    ENDING = auto()
    """The checker ends it; the application's session events run."""
    COMMIT_SENT = auto()
    """COMMIT has no answer yet, or its answer was lost. It stays so when the connection is given up."""
    COMMITTED = auto()
    ROLLED_BACK = auto()


class Doubt(IntEnum):
    """Why the database may have ended a transaction without the driver's knowledge. A greater one contains a lesser."""

    NONE = 0
    FAILED = 1
    """A statement failed: the database may have rolled back."""
    HIDDEN = 2
    """A statement called a procedure, or may have, or a handler took the driver's connection: COMMIT may have run."""


def undone(error: BaseException) -> DoomedTransactionError:
    """The error to raise because the server has undone the transaction, as this error says."""
    return DoomedTransactionError(f"the server has undone the transaction: {explained(error)}")


class HandlerTransaction:
    """The transaction of a group's keys and its handlers' effects, open on one connection.

    Args:
        connections: lends the connection.
        dialect: the properties of the database.
        sessions: makes the handlers' Session on the connection.
        strict: also set a savepoint after the claims, and check at the end that it still exists: detects a transaction
            that was ended in a way that SQLAlchemy does not see (two more round trips).

    Attributes:
        undone_by: the error of the driver by which the server has undone it, such as a deadlock, a full disk or a lost
            connection; None: there was none, or the transaction has recovered from it.
        doubt: why the database may have ended it without the driver's knowledge.
        escaped: how a handler tried to end, or to leave, the transaction.
        refused: it tried to commit, or to write elsewhere, and may believe that it did.
        savepoint: that of the handler which runs; it is shown each statement. None: it has none.
        check: called before COMMIT, and behind it, if a listener of the application's events may have ended it.
        on_end: called once, when it has ended and its connection is given back.
        began: when it began, by the monotonic clock.
        state: how far it is.

    Raises:
        ConfigurationError: the engine is in AUTOCOMMIT, so there would be no transaction.
    """

    _session_kind: type = Session

    def __init__(
        self, connections: DetachedConnections, dialect: SqlDialect, sessions: Sessions, *, strict: bool
    ) -> None:
        self._dialect = dialect
        self._sessions = sessions
        self._strict = strict
        self.state = State.CLAIMING
        self._keyed = False
        self._has_connection = True
        self._suspected = False
        self._session: Session | None = None
        self.savepoint: HandlerSavepoint | None = None
        self.undone_by: BaseException | None = None
        self.doubt = Doubt.NONE
        self.escaped: str | None = None
        self.refused = False
        self.check: Callable[[], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self.began: Final = time.monotonic()
        self._connections = connections
        self._detached: Final = connections.take()
        self.connection: Final = self._detached.connection.lend()
        self.driver: Final = self._detached.driver
        try:
            listen(self.connection.dialect)
            self._transaction = WatchedTransaction(self.connection)
            if dialect.name == "sqlite" and not dialect.in_transaction(self.driver.raw):
                # pysqlite begins too late, and its savepoints commit. BEGIN IMMEDIATE also takes the write lock.
                execute(self.driver, "BEGIN IMMEDIATE")
            self._demand_transaction()
        except BaseException:
            self.close(reuse=False)
            raise

    def _demand_transaction(self) -> None:
        """Refuse AUTOCOMMIT before a claim, which would be final, although its handler never runs."""
        if self._dialect.autocommits(self.driver.raw):
            raise ConfigurationError(
                "the engine is in AUTOCOMMIT: key and effect cannot commit together. "
                "Give the checker an engine without isolation_level='AUTOCOMMIT'"
            )

    def guard(self, *, keyed: bool = True) -> None:
        """Forbid handlers to end it: from now on only `commit` and `close` may.

        Args:
            keyed: it claimed keys, so the server's transaction has begun.
        """
        self._keyed = keyed
        if keyed and self._strict:
            execute(self.driver, f"SAVEPOINT {_GUARD}")
        watch(self.connection, self)
        self.state = State.HANDLING
        self.connection.raw_connection_taken = 0

    def argument(self, kind: type) -> Any:
        """Its connection or its one session, for the handler."""
        return self.connection if issubclass(kind, Connection) else self.session

    @property
    def session(self) -> Session:
        """The Session of all its handlers."""
        if self._session is None:
            self._session = self._sessions.open(self.connection, self)
        return self._session

    def begin_nested(self, kind: type | None) -> SessionTransaction | NestedTransaction:
        """Set a savepoint through the handler's Session, or on the connection. Its statement is sent at once."""
        if kind is None or not issubclass(kind, self._session_kind):
            return self.connection.begin_nested()
        nested = self.session.begin_nested()
        self.session.connection(bind_arguments={"bind": self.connection})
        return nested

    @property
    def has_pending_rows(self) -> bool:
        """Whether the Session has work to send."""
        session = self._session
        return session is not None and bool(session.new or session.dirty or session.deleted)

    def flush(self) -> None:
        """Send the Session's pending changes, and undo changes of the connection's options, for the next handler.

        Raises:
            TransactionEscapedError: the handler has ended the transaction; a next one would write outside of it.
        """
        if self.escaped:
            raise TransactionEscapedError(self.escaped)
        if self.connection.raw_connection_taken:
            # A cursor of the driver may have rolled the transaction back, or committed it, and gone on in the next one.
            self.doubt = Doubt.HIDDEN
        if self._session is not None:
            self._session.flush()
        self.connection.restore_options(self._detached.connection)

    @property
    def is_open(self) -> bool:
        """Whether, as far as the driver knows, the server's transaction is still open and usable."""
        return self._dialect.in_transaction(self.driver.raw)

    def demand_open(self) -> None:
        """Check that no handler has ended the transaction, and that the driver considers it open.

        Raises:
            DoomedTransactionError: the server has rolled it back; the message can run again.
            TransactionEscapedError: a handler ended it.
        """
        is_open = self.is_open
        if self.undone_by is not None and not is_open:
            raise undone(self.undone_by)
        if self.escaped:
            raise TransactionEscapedError(self.escaped)
        if not self._transaction.is_active:
            raise TransactionEscapedError(
                "the handler rolled its transaction back and returned; raise an exception instead, "
                "or use session.begin_nested() for work that may fail"
            )
        if self._keyed and not is_open:
            raise TransactionEscapedError(
                "the transaction ended while the handler ran: the handler ended it with a raw cursor, or ignored an "
                "error after which the server refuses all statements; use session.begin_nested() for work that may fail"
            )

    def release_guard(self) -> None:
        """With `strict`: check that the savepoint set before the handlers still exists.

        Raises:
            TransactionEscapedError: it does not, so a handler ended the transaction.
        """
        if not (self._keyed and self._strict):
            return
        # RELEASE ends later savepoints too, and the Session would fail to release its own at COMMIT.
        while self._session is not None and (nested := self._session.get_nested_transaction()) is not None:
            nested.commit()
        try:
            execute(self.driver, f"RELEASE SAVEPOINT {_GUARD}")
        except Exception as error:
            raise TransactionEscapedError(
                "the savepoint set before the handler is gone: the handler ended the transaction"
            ) from error

    def commit(self) -> None:
        """Commit. Exceptions of the driver and of the application's session events pass through.

        Raises:
            TransactionEscapedError: a listener ignored an error after which PostgreSQL answered COMMIT with ROLLBACK.
        """
        self.state = State.ENDING
        self.doubt = Doubt.NONE
        self.connection.raw_connection_taken = 0
        session = self._session
        # So that the application's session events fire: a listener may write what an idle Session has only noted.
        if session is not None and (
            session.in_transaction() or (session.autobegin and session.dispatch.before_commit)
        ):
            session.commit()
        if self._transaction.is_active:
            self._transaction.commit()

    def commits(self) -> None:
        """Note that COMMIT is sent now.

        Raises:
            TransactionEscapedError: a handler sends it.
        """
        self.refuse("commit()")
        if self.connection.raw_connection_taken:
            self.doubt = Doubt.HIDDEN
        if self.doubt and self.check is not None:
            self.check()
        self.doubt = Doubt.NONE
        self.connection.raw_connection_taken = 0
        self.state = State.COMMIT_SENT

    def has_committed(self) -> None:
        """Note that COMMIT had no error.

        Raises:
            TransactionEscapedError: a listener to it had ended the transaction, or ignored an error that did.
            StoreError: it is unknown whether one has.
        """
        if (self.doubt or self.connection.raw_connection_taken > 1) and self.check is not None:
            self.check()
        self.state = State.COMMITTED

    def close(self, *, reuse: bool = True) -> None:
        """Roll back what is not committed and give the connection back. Never raises; idempotent.

        Args:
            reuse: whether the connection may serve another one. Not after an interrupt: it may hold an unread answer.
        """
        if not self._has_connection:
            return
        before = self._end()
        try:
            if before is not State.CLAIMING:
                unwatch(self.connection)
            if self._session is not None:
                self._sessions.close(self._session)
            if before is not State.COMMITTED:
                # On the driver's connection too: after a refused commit() SQLAlchemy considers the transaction
                # finished, but the server would keep its locks until it notices the closed connection.
                if self._transaction.is_active:
                    self._transaction.rollback()
                self.driver.raw.rollback()
            reusable = reuse and not self._suspected and self._detached.intact
        except Exception:
            reusable = False
        self.connection.end()
        if reusable:
            self._connections.give_back(self._detached)
        else:
            self._connections.discard(self._detached)
        self._tell_end()

    def _tell_end(self) -> None:
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end()

    @property
    def has_ended(self) -> bool:
        """Whether it holds its keys no more."""
        return not self._has_connection or self.state in (State.COMMITTED, State.ROLLED_BACK)

    def _end(self) -> State:
        """Note that it ends here. Returns how far it was."""
        before = self.state
        self._has_connection = False
        self.check = None  # it refers to this transaction, which would live until Python looks for cycles
        if before not in (State.COMMIT_SENT, State.COMMITTED):
            self.state = State.ROLLED_BACK
        return before

    def refuse_ending(self, statement: str) -> None:
        """Refuse a statement that would end the transaction. Called before every statement on the connection.

        Raises:
            TransactionEscapedError: a handler sent such a statement.
        """
        if self.state is not State.HANDLING:
            return
        end = classify_transaction_end(self._dialect.name, statement)
        if end is TransactionEnd.ALWAYS:
            self.refuse(" ".join(statement.split()[:2]).upper())
        if end is TransactionEnd.PERHAPS:
            self.doubt = Doubt.HIDDEN
        if self.savepoint is not None:
            self.savepoint.see(statement)

    def note_error(self, error: BaseException) -> None:
        """Note the driver's error of a statement on the connection.

        After a deadlock MySQL rolls back, and the next statement begins a new transaction: if the handler ignores the
        error, that must not be committed. SQLite's ON CONFLICT ROLLBACK and a lock wait with MySQL's
        innodb_rollback_on_timeout have the same effect. A pooler that changes sessions is no failure of the handler.
        """
        self.doubt = max(self.doubt, Doubt.FAILED)
        fault = fault_of(error, self.connection.engine)
        # A handler may have left a search_path or a role on the connection: the next message gets another one.
        self._suspected = self._suspected or fault in (Fault.SCHEMA, Fault.DENIED, Fault.DISCONNECTED)
        if fault in UNDONE or lacks_what_it_prepared(error):
            self.undone_by = error
        elif (
            self._dialect.name == "postgresql" and getattr(error, "sqlstate", None) != _IN_FAILED_TRANSACTION
        ):
            # PostgreSQL answered otherwise, so a savepoint had taken back what the server aborted.
            self.undone_by = None

    def refuse(self, what: str) -> None:
        """Refuse `what`, by which a handler tries to end the transaction.

        Raises:
            TransactionEscapedError: the checker is not ending it.
        """
        if self.state is State.HANDLING:
            self._refuse(
                f"{what} inside a transactional handler: the checker commits the handler's work together with "
                "its deduplication key. Remove it; raise an exception to roll back"
            )

    def note_discarded(self, how: str) -> None:
        """Note `how` a handler has discarded its Session's work; rows that were not sent go without a statement."""
        if self.state is State.HANDLING and self.escaped is None:
            self.escaped = how

    def refuse_elsewhere(self, connection: Connection) -> None:
        """Refuse a connection that the handlers' Session has opened, unless it is this one's. Nothing was sent on it.

        Raises:
            TransactionEscapedError: what the Session sends there would not commit together with the key.
        """
        if connection is not self.connection:
            url = connection.engine.url.set(query={}).render_as_string(hide_password=True)
            self._refuse(
                f"the handler's Session began a transaction on another connection ({url}), which does not commit "
                "together with the deduplication key. Remove binds=, bind_arguments= or the get_bind() that chose it; "
                "for another database use a Session of its own"
            )

    def _refuse(self, what: str) -> NoReturn:
        self.escaped, self.refused = what, True
        raise TransactionEscapedError(what)


class HandlerSavepoint:
    """The savepoint of one handler of a group, so that the others can go on without its work.

    That is only true while the savepoint is there. A failed `flush()` rolls it back, and SQLAlchemy's `with` says
    nothing about that at its end. So the handler must not return without it, and must send nothing after it has gone:
    the transaction has `escaped` then, and the group is given up.

    Args:
        transaction: the transaction.
        kind: what the handler takes: a Session or a Connection.
    """

    def __init__(self, transaction: HandlerTransaction, kind: type | None) -> None:
        self._transaction = transaction
        self._kind = kind
        self._name: str | None = None
        self._gone = False
        self._released = False

    def __enter__(self) -> None:
        """Set it."""
        self._transaction.savepoint = self
        self._nested = self._transaction.begin_nested(self._kind).__enter__()

    def see(self, statement: str) -> None:
        """Look at a statement before it is sent on the connection: it may roll the savepoint back, or release it.

        Raises:
            TransactionEscapedError: the savepoint is gone.
        """
        if self._gone:
            self._transaction.note_discarded(_OUTSIDE)
            raise TransactionEscapedError(_OUTSIDE)
        if self._name is None:
            if statement.startswith("SAVEPOINT "):
                self._name = statement.removeprefix("SAVEPOINT")
        # The name begins with a blank: sa_savepoint_1 is not the end of x_sa_savepoint_1.
        elif statement.endswith(self._name):
            self._gone = True
            self._released = "RELEASE" in statement.upper()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release it, or roll back to it after an exception, which always passes: it may be an interrupt.

        Raises:
            TransactionEscapedError: it has gone before, so what the handler wrote is lost.
        """
        self._transaction.savepoint = None
        is_whole = self._nested.is_active and not self._gone
        try:
            self._nested.__exit__(kind, error, traceback)
        except Exception:
            # The server does not have it, or refuses statements. The transaction knows the error that did this.
            if self._transaction.undone_by is None:
                self._transaction.note_discarded("the savepoint of the handler could not be ended")
            if error is None:
                raise
            return
        # A row that was added after the savepoint had gone would be sent with the next handler's.
        if self._released or (self._transaction.has_pending_rows if error is not None else not is_whole):
            self._transaction.note_discarded(_OUTSIDE)
        if error is None and self._transaction.escaped:
            raise TransactionEscapedError(self._transaction.escaped)
