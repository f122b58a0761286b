"""Sends: what was sent in a Session's transaction, until it is written just before the transaction commits.

The listeners are those of the class Session, from the import on: one that a Session gets at its first `send` would miss
the commit that is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, ref

from sqlalchemy import Connection, Pool, event
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction

from idempotent.errors import ConfigurationError
from idempotent.outbox.entries import Entry
from idempotent.outbox.inserts import Inserts, autocommits, no_transaction

# Weak: a Session that is dropped without close() must give its connection back.
Transactions: TypeAlias = "tuple[ReferenceType[SessionTransaction], ...]"


@dataclass(slots=True)
class _Sent:
    """An entry that was sent.

    Attributes:
        entry: the entry.
        inside: the transactions that it belongs to: the innermost savepoint first, the whole one last.
        written_inside: those in which it was written; empty: it was not.
    """

    entry: Entry
    inside: Transactions
    written_inside: Transactions = ()


class Sends:
    """The entries of one outbox in all Sessions.

    Args:
        inserts: writes them.
        committed: called when a transaction with entries has committed.
        dropped: called with the entries of a transaction, or savepoint, that did not commit.
    """

    def __init__(
        self, inserts: Inserts, committed: Callable[[], object], dropped: Callable[[list[Entry]], object]
    ) -> None:
        self._inserts = inserts
        self.committed: Final = committed
        self.dropped: Final = dropped

    def add(self, session: Session, entry: Entry) -> None:
        """Add an entry to the Session's current transaction, or savepoint. Nothing is sent to the database.

        Raises:
            ConfigurationError: the Session has no transaction that could still commit.
        """
        if not session.in_transaction():
            if not session.autobegin:
                raise ConfigurationError(
                    "the Session has autobegin=False: begin its transaction before you send"
                )
            session.begin()
        if session in _autocommitting:
            raise no_transaction()
        innermost = _innermost(session)
        if innermost is None or not innermost.is_active:
            raise ConfigurationError(
                "the Session's transaction, or savepoint, has ended or failed: nothing that is sent in it could commit"
            )
        _of_session(session).setdefault(self, []).append(_Sent(entry, _transactions(session)))
        if session in _committing:
            self.write(session)

    def write(self, session: Session) -> None:
        """Write what was sent in the current transaction and is not written yet."""
        unwritten = [sent for sent in _pending.get(session, {}).get(self, ()) if not sent.written_inside]
        if unwritten:
            connection, inside = _connection(session), _transactions(session)
            by_entry = {id(sent.entry): sent for sent in unwritten}

            def note(written: Sequence[Entry]) -> None:
                for entry in written:
                    by_entry[id(entry)].written_inside = inside

            self._inserts.write(connection, [sent.entry for sent in unwritten], note)


_pending: Final[WeakKeyDictionary[Session, dict[Sends, list[_Sent]]]] = WeakKeyDictionary()
# Sessions whose transaction is being committed: what is sent in them now is written at once.
_committing: Final[WeakSet[Session]] = WeakSet()
# Sessions that have a connection in AUTOCOMMIT: a rollback would leave the effect, and take its messages.
_autocommitting: Final[WeakSet[Session]] = WeakSet()
# The pools of the connections in a Session's transaction: more than one are several databases.
_pools: Final[WeakKeyDictionary[Session, WeakSet[Pool]]] = WeakKeyDictionary()
# Savepoints that were released: their end is no rollback.
_released: Final[WeakSet[SessionTransaction]] = WeakSet()


def _of_session(session: Session) -> dict[Sends, list[_Sent]]:
    found = _pending.get(session)
    if found is None:
        found = _pending[session] = {}
    return found


def _innermost(session: Session) -> SessionTransaction | None:
    return session.get_nested_transaction() or session.get_transaction()


def _transactions(session: Session) -> Transactions:
    inner = _innermost(session)
    found: list[ReferenceType[SessionTransaction]] = []
    while inner is not None:
        found.append(ref(inner))
        inner = inner.parent
    return tuple(found)


def _connection(session: Session) -> Connection:
    """The Session's connection, which must be the only one of its transaction.

    Raises:
        ConfigurationError: the Session has no engine for all tables, or its effects are in several databases.
    """
    how = (
        "send on the connection of the effect instead: outbox.send(session.connection(bind_arguments={'mapper': "
        "Order}), message)"
    )
    try:
        connection = session.connection()
    except UnboundExecutionError as error:
        raise ConfigurationError(
            f"the Session has no engine of its own: make it with Session(engine), or, if it has binds, {how}"
        ) from error
    if len(_pools.get(session, ())) > 1:
        raise ConfigurationError(
            f"the transaction of this Session is in several databases, which do not commit together: {how}"
        )
    return connection


@event.listens_for(Session, "after_begin")
def _after_begin(session: Session, _transaction: SessionTransaction, connection: Connection) -> None:
    _pools.setdefault(session, WeakSet()).add(connection.engine.pool)
    if autocommits(connection):
        _autocommitting.add(session)
        if any(_pending.get(session, {}).values()):
            raise no_transaction()


@event.listens_for(Session, "before_commit")
def _before_commit(session: Session) -> None:
    if session.in_nested_transaction():
        return  # a savepoint is released
    for sends in list(_pending.get(session, ())):
        sends.write(session)
    _committing.add(session)


@event.listens_for(Session, "after_commit")
def _after_commit(session: Session) -> None:
    nested = session.get_nested_transaction()
    if nested is not None:
        _released.add(nested)
        return
    _committing.discard(session)
    for sends in _pending.pop(session, {}):
        sends.committed()


@event.listens_for(Session, "after_transaction_end")
def _after_end(session: Session, ended: SessionTransaction) -> None:
    """Forget what was sent in a transaction, or savepoint, that did not commit: it was rolled back, or closed."""
    if ended.parent is None:
        _committing.discard(session)
        _autocommitting.discard(session)
        _pools.pop(session, None)
    elif not ended.nested or ended in _released:
        return
    gone = ref(ended)
    for sends, sent in _pending.get(session, {}).items():
        dropped = [each.entry for each in sent if gone in each.inside]
        sent[:] = [each for each in sent if gone not in each.inside]
        sends.dropped(dropped)
        for each in sent:
            if gone in each.written_inside:
                each.written_inside = ()
