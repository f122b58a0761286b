"""Reports each COMMIT, statement and error of a handler to its transaction; tells which statements end it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto
from functools import lru_cache
from traceback import walk_tb
from typing import Any, Final, Protocol
from weakref import WeakSet

from sqlalchemy import Connection, Dialect, event
from sqlalchemy.engine import ExceptionContext, ExecutionContext, RootTransaction
from sqlalchemy.exc import DBAPIError

from idempotent.stores.sql.cursor import DriverConnection, execute

INFO: Final = "idempotent_transaction"
"""Where a connection, and a Session, has the transaction of its handler."""
# ROLLBACK TO a savepoint does not end a transaction.
# https://dev.mysql.com/doc/refman/8.0/en/implicit-commit.html
_ENDS: Final = (
    r"commit|rollback(?!\s+(?:work\s+)?to\b)|abort|end|begin|start\s+transaction|prepare\s+transaction"
)
_IMPLICIT: Final = (
    r"|create(?!\s+temporary\s+table)|alter|drop(?!\s+temporary\s+table)|truncate|rename|grant|revoke|lock\s+tables?"
    r"|unlock\s+tables?|analyze|optimize|repair|flush|set\s+(?:session\s+|@@(?:session\.)?)?autocommit"
    r"|install|uninstall|cache\s+index|load\s+index|check\s+table|reset(?!\s+persist)|change|start|stop|set\s+password"
)
# What MySQL may begin with and has no other statement within: no CALL, no EXECUTE, no block.
_SIMPLE: Final = (
    r"\(|(?:select|insert|update|delete|replace|with|values|table|do|show|describe|desc|explain|use|savepoint|release"
    r"|rollback|create|drop|kill|load\s+data|handler|set(?!\s+statement\b)|prepare|deallocate)\b"
)
_BLANK: Final = r"(?:[\s;]|/\*(?:[^*]|\*(?!/))*\*/|--[^\n]*\n|#[^\n]*\n)*"
_ENDING: Final = {
    "mysql": re.compile(rf"{_BLANK}(?:{_ENDS}{_IMPLICIT})\b", re.IGNORECASE),
    "postgresql": re.compile(rf"{_BLANK}(?:{_ENDS})\b", re.IGNORECASE),
    "sqlite": re.compile(rf"{_BLANK}(?:{_ENDS})\b", re.IGNORECASE),
}
# Behind other statements, in a comment that MySQL runs, within a compound statement.
_WITHIN: Final = (
    r"\b(?:commit|rollback(?!\s+(?:work\s+)?to\b)|abort|begin|start\s+transaction|prepare\s+transaction)\b"
)
_HIDING: Final = {
    "mysql": re.compile(rf"\A(?!{_BLANK}(?:{_SIMPLE}))|/\*M?!|\bautocommit\b|{_WITHIN}", re.IGNORECASE),
    # Comments within comments, and behind other statements, are not read.
    "postgresql": re.compile(
        rf"{_WITHIN}|;\s*(?:end\b|/\*|--)|/\*(?:[^*/]|\*(?!/)|/(?!\*))*/\*", re.IGNORECASE
    ),
}
_LONGEST_KEPT: Final = 2000

_listened: Final[WeakSet[Dialect]] = WeakSet()


class Watcher(Protocol):
    """What a transaction is told."""

    @property
    def driver(self) -> DriverConnection:
        """Its connection, for statements of the library's own."""

    def commits(self) -> None:
        """Note that COMMIT is sent now. Raise an error if a handler sends it."""

    def has_committed(self) -> None:
        """Note that COMMIT has succeeded."""

    def refuse_ending(self, statement: str) -> None:
        """Raise an error if a handler's statement would end the transaction."""

    def note_error(self, error: BaseException) -> None:
        """Note the driver's error of a statement."""

    def refuse_elsewhere(self, connection: Connection) -> None:
        """Raise an error if this, on which a handler's Session begins, is not the transaction's connection."""

    def note_discarded(self, how: str) -> None:
        """Note that a handler has discarded its Session's work, with `how` to do without."""


def watch(connection: Connection, watcher: Watcher) -> None:
    """Report to `watcher` from now on."""
    connection.info[INFO] = watcher


def unwatch(connection: Connection) -> None:
    """Report no more."""
    connection.info.pop(INFO, None)


def _watcher_of(connection: Connection) -> Watcher | None:
    """The watcher of a connection; None: no handler may be using it."""
    watcher: Watcher | None = connection.info.get(INFO)
    return watcher


def execute_beside(connection: Connection, statement: str, parameters: Sequence[object]) -> bool:
    """Execute a statement of the library's own as the checker does in a handler's transaction: by the driver.

    SQLAlchemy takes longer for an INSERT than its round trip does.

    Returns whether the connection has a handler's transaction; if not, nothing is executed.

    Raises:
        DBAPIError: the database failed; the transaction has noted it.
    """
    watcher = _watcher_of(connection)
    if watcher is None:
        return False
    kind = connection.dialect.loaded_dbapi.Error
    try:
        execute(watcher.driver, statement, parameters)
    except kind as error:
        watcher.note_error(error)
        raise DBAPIError.instance(
            statement, None, error, kind, hide_parameters=True, dialect=connection.dialect
        ) from error
    return True


class WatchedTransaction(RootTransaction):
    """Like the transaction of `connection.begin()`, but only the checker commits it.

    An event listener for "commit" would work too, but with any listener of `ConnectionEvents` the engine spends 10 us
    more on each statement; an INSERT takes 33 to 44 us in SQLAlchemy.
    """

    __slots__ = ()

    def commit(self) -> None:
        """Commit, if it is the checker that does."""
        watcher = _watcher_of(self.connection)
        if watcher is not None:
            watcher.commits()
        super().commit()
        if watcher is not None:
            watcher.has_committed()


def was_sending(error: Exception) -> bool:
    """Whether an exception came out of SQLAlchemy's call of the driver's COMMIT, not of a listener before it."""
    return any(frame.f_code.co_name == "do_commit" for frame, _ in walk_tb(error.__traceback__))


def listen(dialect: Dialect) -> None:
    """Listen to the statements and errors of an engine's connections. `Connection.info` holds the watcher."""
    if dialect in _listened:
        return
    # Two threads may listen at once: SQLAlchemy adds the same function only once.
    event.listen(dialect, "do_execute", _statement)
    event.listen(dialect, "do_executemany", _statement)
    event.listen(dialect, "do_execute_no_params", _bare_statement)
    event.listen(dialect, "handle_error", _error)
    _listened.add(dialect)  # last: another thread that finds it here listens no more, and trusts it


def _statement(_cursor: Any, statement: str, _parameters: Any, context: ExecutionContext) -> None:
    watcher = _watcher_of(context.root_connection)
    if watcher is not None:
        watcher.refuse_ending(statement)


def _bare_statement(cursor: Any, statement: str, context: ExecutionContext) -> None:
    _statement(cursor, statement, None, context)


def _error(context: ExceptionContext) -> None:
    watcher = None if context.connection is None else _watcher_of(context.connection)
    if watcher is not None:
        watcher.note_error(context.original_exception)


class TransactionEnd(Enum):
    """What a statement does to its transaction."""

    NOT = auto()
    PERHAPS = auto()
    """It calls a procedure, or has a word such as COMMIT behind its beginning, which may be data."""
    ALWAYS = auto()


def classify_transaction_end(dialect: str, statement: str) -> TransactionEnd:
    """Whether a statement ends the transaction in the database of this dialect."""
    # Applications send the same few statements again and again.
    return _known(dialect, statement) if len(statement) <= _LONGEST_KEPT else _ends(dialect, statement)


def _ends(dialect: str, statement: str) -> TransactionEnd:
    if _ENDING[dialect].match(statement):
        return TransactionEnd.ALWAYS
    hiding = _HIDING.get(dialect)
    return TransactionEnd.PERHAPS if hiding is not None and hiding.search(statement) else TransactionEnd.NOT


_known: Final = lru_cache(maxsize=1024)(_ends)
