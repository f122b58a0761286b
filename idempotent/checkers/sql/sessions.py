"""Sessions: makes the handlers' Sessions on the connection of their unit, and on no other."""

from __future__ import annotations

import contextlib
from typing import Final, Protocol, TypeAlias

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL
from sqlalchemy.orm import Session, SessionTransaction, sessionmaker

from idempotent.errors import ConfigurationError

Database: TypeAlias = "Engine | URL | str | sessionmaker[Session]"

_INFO: Final = "idempotent_unit"


class SessionOwner(Protocol):
    """The unit that owns a Session."""

    def refuse_elsewhere(self, connection: Connection) -> None:
        """Raise an error if this is not the unit's connection."""

    def note_discarded(self, how: str) -> None:
        """Note that a handler has discarded the Session's work, with `how` to do without."""


class Sessions:
    """Makes Sessions.

    Args:
        factory: the application's `sessionmaker`, or a plain one.
    """

    def __init__(self, factory: sessionmaker[Session]) -> None:
        self._factory: Final = factory
        self.kind: Final[type[Session]] = factory.class_
        """The class of the Sessions, as the application made it."""
        self._made: Final[type[Session]] = type(self.kind.__name__, (_TellsOfClosing, self.kind), {})
        # Such a Session may ask for the engine, and then gets the unit's connection if it has joined it before.
        self._routes = self.kind.get_bind is not Session.get_bind or bool(factory.kw.get("binds"))
        event.listen(factory, "after_begin", _refuse_elsewhere)
        event.listen(factory, "after_soft_rollback", _note_rollback)

    def open(self, connection: Connection, owner: SessionOwner) -> Session:
        """A Session on a connection whose transaction has begun."""
        settings = {**self._factory.kw, "bind": connection, "join_transaction_mode": "control_fully"}
        session = self._made(**settings)
        session.info[_INFO] = owner
        if not session.autobegin:
            session.begin()
        if self._routes:
            session.connection(bind_arguments={"bind": connection})
        return session

    @staticmethod
    def close(session: Session) -> None:
        """Close a Session. It no longer belongs to a unit."""
        session.info.pop(_INFO, None)
        session.close()


class _TellsOfClosing(Session):
    """Closing discards what was not sent without a statement or an event, also at the end of `with session:`."""

    def close(self) -> None:
        _note_closing(self, "close()")
        super().close()

    def reset(self) -> None:
        _note_closing(self, "reset()")
        super().reset()

    def invalidate(self) -> None:
        _note_closing(self, "invalidate()")
        super().invalidate()


def _note_closing(session: Session, call: str) -> None:
    owner: SessionOwner | None = session.info.get(_INFO)
    # A Session whose work was sent, or that has work to send, is in a transaction.
    if owner is not None and session.in_transaction():
        owner.note_discarded(
            f"the handler closed its Session, which discards its work ({call}, or the end of `with session:`); "
            "leave it open, the checker closes it"
        )


def _refuse_elsewhere(session: Session, _transaction: SessionTransaction, connection: Connection) -> None:
    owner: SessionOwner | None = session.info.get(_INFO)
    if owner is not None:
        owner.refuse_elsewhere(connection)


def _note_rollback(session: Session, ended: SessionTransaction) -> None:
    owner: SessionOwner | None = session.info.get(_INFO)
    if owner is not None and ended.parent is None:
        owner.note_discarded(
            "the handler rolled its Session back and returned; raise an exception to roll back"
        )


def sessions_of(database: Database) -> tuple[Sessions, Engine | URL | str]:
    """The handlers' Sessions, and the engine or URL of the database.

    Raises:
        ConfigurationError: a sessionmaker without an engine, with several, or with two-phase commit.
    """
    if not isinstance(database, sessionmaker):
        return Sessions(sessionmaker()), database
    bind = database.kw.get("bind")
    if not isinstance(bind, Engine):
        raise ConfigurationError(
            "the sessionmaker has no engine: write sessionmaker(engine), with one engine, because key and effect "
            "commit in one transaction"
        )
    other = _other_engine(database, bind)
    if other is not None:
        raise ConfigurationError(
            f"the sessionmaker sends statements to {other!r} too, where they would not commit together with the key: "
            "give the checker a sessionmaker(engine) of its own, without binds= and without a get_bind() that "
            "returns another engine"
        )
    if "isolation_level" in (database.kw.get("execution_options") or {}):
        raise ConfigurationError(
            "the sessionmaker has an isolation_level in its execution_options, but the transaction begins with the "
            "key: set it on the engine, create_engine(url, isolation_level=...)"
        )
    if database().twophase:
        raise ConfigurationError(
            "the sessionmaker has twophase=True, but key and effect commit in one transaction of one database: "
            "give the checker a sessionmaker(engine) without it"
        )
    return Sessions(database), bind


def _other_engine(factory: sessionmaker[Session], engine: Engine) -> object:
    """An engine or connection other than `engine` to which the Sessions send statements, if that can be seen now."""
    binds = [*(factory.kw.get("binds") or {}).values()]
    if factory.class_.get_bind is not Session.get_bind:
        with contextlib.suppress(Exception):  # it may need more to answer, such as the context of a request
            binds.append(factory().get_bind())
    return next((bind for bind in binds if bind is not engine), None)
