"""Outbox: messages that commit with the effect of a handler, and that a relay publishes afterwards.

What is sent in a Session's transaction is written just before the transaction commits. The listeners are those of the
class Session, from the import on: one that a Session gets at its first `send` would miss the commit that is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, ref

from sqlalchemy import URL, Connection, Engine, Pool, event
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from idempotent.errors import ConfigurationError
from idempotent.message import Message
from idempotent.observe.observers import Observer, Observers
from idempotent.outbox.entries import Entry, Transactions, demand_text, derive_id, entry_of
from idempotent.outbox.inserts import Inserts, autocommits, no_transaction
from idempotent.outbox.store import OutboxStore
from idempotent.outbox.wakes import Notifier
from idempotent.processing.calling import claim_if_any, inside_handler, inside_leased_batch
from idempotent.schema import DEFAULT_TABLE, ID_LENGTH, validate_table_name
from idempotent.stores.sql.engines import AnyEngine
from idempotent.validation import flag

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession


@dataclass(slots=True)
class _Life:
    """What is known of a Session until its transaction ends.

    Attributes:
        sent: what was sent in it, by outbox.
        pools: those of its connections: more than one are several databases.
        autocommits: whether one of these is in AUTOCOMMIT: a rollback would leave the effect, and take its messages.
        is_committing: what is sent now is written at once.
    """

    sent: dict[Outbox, list[Entry]] = field(default_factory=dict)
    pools: WeakSet[Pool] = field(default_factory=WeakSet)
    autocommits: bool = False
    is_committing: bool = False


_lives: Final[WeakKeyDictionary[Session, _Life]] = WeakKeyDictionary()
# Savepoints that were released: their end is no rollback.
_released: Final[WeakSet[SessionTransaction]] = WeakSet()


class Outbox:
    """Stores messages in the transaction of a handler's effect. A `Relay` publishes them when it has committed.

    Args:
        engine_or_url: an SQLAlchemy engine, an AsyncEngine or a URL, for the relay and for `idempotent outbox`. The
            messages themselves are written on the connection of the session that they are sent in.
        table: the key table that the outbox belongs to; make its tables with `idempotent.migrations.upgrade(url)`.
        schema: where the tables are (MySQL: the database); None: where a new connection finds them.
        notify: on PostgreSQL, wake the relays of other processes by NOTIFY after a Session has committed messages. It
            takes a thread and a connection, and spares them up to `poll_s` seconds.
        observers: are told what is sent, and may add headers: see `Observer.sending`.

    Raises:
        ConfigurationError: an invalid URL, table name or schema, an unsupported database, or no list of observers.
        MissingExtraError: the database's driver is not installed.
    """

    def __init__(
        self,
        engine_or_url: AnyEngine,
        *,
        table: str = DEFAULT_TABLE,
        schema: str | None = None,
        notify: bool = False,
        observers: Iterable[Observer] = (),
    ) -> None:
        self.table: Final = validate_table_name(table)
        _demand_engine_or_url(engine_or_url)
        self.store: Final = OutboxStore(engine_or_url, table, schema)
        self.channel: Final = self.store.name
        """What relays listen to on PostgreSQL."""
        self.committed: Final[list[Callable[[], object]]] = []
        """Called when a transaction of this process has committed messages: wakes relays."""
        self._notifier = Notifier(self.store, self.channel) if flag(notify, "notify") else None
        if self._notifier is not None:
            if self.store.connections.engine.dialect.name != "postgresql":
                raise ConfigurationError("notify=True is for PostgreSQL: other databases have no NOTIFY")
            self.committed.append(self._notifier.tell)
        self._observers: Final = Observers(observers)
        self._inserts = Inserts(self.store.connections.engine.url, table, schema)

    def send(
        self,
        session: Session | scoped_session[Session] | AsyncSession | Connection,
        message: Message,
        *,
        order_key: str | None = None,
        to: str = "",
        delay_s: float = 0.0,
        dedup: str | None = None,
    ) -> str:
        """Send a message if, and only if, the transaction commits.

        In a Session nothing is written before it commits, or `flush` is called; on a Connection it is written at once.
        A savepoint of a Session (`begin_nested`) that is rolled back takes its messages with it. A savepoint that is
        made on the Connection under a Session is not seen.

        Args:
            session: where the effect happens.
            message: its subject, body, headers and, if it has one, its id.
            order_key: messages of one key are published in the order in which their transactions wrote them. That order
                is defined if each transaction has locked something of the key, such as the row of a customer, before.
                None: the message's own `key`, if it has one.
            to: the name of the broker, for a relay that has several.
            delay_s: seconds to wait before it is published.
            dedup: names this message among all that the handler sends, so that its id is the same when the handler runs
                again. Only used for handlers whose checker is leased, which may run twice. Without it the id is made of
                the content. Refused outside of a handler.

        Returns the message's id: its own, or else one derived from the claim of a leased handler, or a new one.

        Raises:
            ConfigurationError: a value of another type or too long; or a message without an id in a batch handler whose
                checker is leased. Nothing was sent.
            OutboxError: on a Connection: a table is missing, or the user may not write to it. In a Session its commit
                raises it.
        """
        target = _plain(session)
        if isinstance(target, Session):
            entry = self._entry(message, order_key, to, delay_s, dedup)
            try:
                self._add(target, entry)
            except BaseException:
                entry.copies.discard(entry.copy)
                raise
        elif isinstance(target, Connection):
            entry = self._entry(message, order_key, to, delay_s, dedup)
            self._inserts.write(target, [entry])
        else:
            kind = type(session).__name__
            hint = ": use `await outbox.send_on(connection, message)`" if kind == "AsyncConnection" else ""
            raise ConfigurationError(
                f"give a Session, an AsyncSession or a Connection, not of type {kind}{hint}"
            )
        return entry.message_id

    async def send_on(self, connection: AsyncConnection, message: Message, **options: Any) -> str:
        """`send` on an AsyncConnection, which is written at once."""
        if not hasattr(connection, "run_sync"):
            raise ConfigurationError(
                f"send_on takes an AsyncConnection, not of type {type(connection).__name__}: use "
                "`outbox.send(connection, message)`, without await"
            )
        sent: str = await connection.run_sync(lambda sync: self.send(sync, message, **options))
        return sent

    def flush(self, session: Session | scoped_session[Session]) -> None:
        """Write what was sent in the Session's transaction. It still commits, or not, with the transaction.

        Raises:
            OutboxError: a table is missing, or the user may not write to it.
            SQLAlchemyError: the database failed otherwise.
        """
        target = session() if isinstance(session, scoped_session) else session
        if not isinstance(target, Session):
            raise ConfigurationError(
                f"flush takes a Session, not a {type(session).__name__}; with an AsyncSession: "
                "await session.run_sync(outbox.flush)"
            )
        if target.in_transaction():
            unwritten = [each for each in _life_of(target).sent.get(self, ()) if not each.written_inside]
            if unwritten:
                self._inserts.write(_connection(target), unwritten, _transactions(target))

    def close(self) -> None:
        """Close the connections of the relay and of the questions. Idempotent."""
        if self._notifier is not None:
            self._notifier.close()
        self.store.close()

    def _entry(
        self,
        message: Message,
        order_key: str | None,
        to: str,
        delay_s: float,
        dedup: str | None,
    ) -> Entry:
        if not isinstance(message, Message):
            raise ConfigurationError(f"send takes a Message, not a {type(message).__name__}")
        if self._observers.watch_sending:
            added = self._observers.sending(self.channel, message)
            message = replace(message, headers={**added, **message.headers}) if added else message
        if order_key is None and message.key is not None:
            order_key = _text_of(message.key)
        entry = entry_of(message, to, order_key, delay_s)
        if message.id is None and inside_leased_batch():
            raise ConfigurationError(
                "a batch handler without a transaction of its checker's may run again with other messages, and what it "
                "sends must keep its id: derive that from what the handler was given, "
                'Message(..., id=f"invoice-{order.id}")'
            )
        claim = claim_if_any()
        if dedup is not None:
            demand_text(dedup, "dedup", ID_LENGTH)
            if not inside_handler():
                raise ConfigurationError(
                    "dedup names a message among those of a handler, and no handler runs here: give the message an id, "
                    "Message(..., id=...); in a thread of a handler use contextvars.copy_context().run"
                )
        if message.id is None and claim is not None and claim.owner and claim.transaction is None:
            derive_id(entry, claim, message, dedup)
        return entry

    def _add(self, session: Session, entry: Entry) -> None:
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
        life = _life_of(session)
        if life.autocommits:
            raise no_transaction()
        innermost = _innermost(session)
        if innermost is None or not innermost.is_active:
            raise ConfigurationError(
                "the Session's transaction, or savepoint, has ended or failed: nothing that is sent in it could commit"
            )
        entry.inside = _transactions(session)
        life.sent.setdefault(self, []).append(entry)
        if life.is_committing:
            self.flush(session)


def _demand_engine_or_url(given: object) -> None:
    if not isinstance(getattr(given, "sync_engine", given), (Engine, URL, str)):
        raise ConfigurationError(
            f"an Outbox takes an engine, an AsyncEngine or a URL, not a {type(given).__name__}: messages are written "
            "on the session that `send` gets"
        )


def _text_of(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"the message's key is not UTF-8, as an order key must be: {error}"
        ) from error


def _plain(session: object) -> object:
    """The Session behind an AsyncSession or a scoped one."""
    if isinstance(session, scoped_session):
        return session()
    return getattr(session, "sync_session", session)


def _life_of(session: Session) -> _Life:
    found = _lives.get(session)
    if found is None:
        found = _lives[session] = _Life()
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
    if len(_life_of(session).pools) > 1:
        raise ConfigurationError(
            f"the transaction of this Session is in several databases, which do not commit together: {how}"
        )
    return connection


@event.listens_for(Session, "after_begin")
def _after_begin(session: Session, _transaction: SessionTransaction, connection: Connection) -> None:
    life = _life_of(session)
    life.pools.add(connection.engine.pool)
    if autocommits(connection):
        life.autocommits = True
        if any(life.sent.values()):
            raise no_transaction()


@event.listens_for(Session, "before_commit")
def _before_commit(session: Session) -> None:
    if session.in_nested_transaction():
        return  # a savepoint is released
    life = _life_of(session)
    for outbox in list(life.sent):
        outbox.flush(session)
    life.is_committing = True


@event.listens_for(Session, "after_commit")
def _after_commit(session: Session) -> None:
    nested = session.get_nested_transaction()
    if nested is not None:
        _released.add(nested)
        return
    life = _lives.pop(session, _Life())
    for outbox in life.sent:
        for tell in tuple(outbox.committed):
            tell()


@event.listens_for(Session, "after_transaction_end")
def _after_end(session: Session, ended: SessionTransaction) -> None:
    """Forget what was sent in a transaction, or savepoint, that did not commit: it was rolled back, or closed."""
    if ended.parent is not None and (not ended.nested or ended in _released):
        return
    gone = ref(ended)
    for entries in _life_of(session).sent.values():
        for each in entries:
            if gone in each.inside:
                each.copies.discard(each.copy)
            if gone in each.written_inside:
                each.written_inside = ()
        entries[:] = [each for each in entries if gone not in each.inside]
    if ended.parent is None:
        _lives.pop(session, None)
