"""Sessions: makes the handlers' Sessions on the connection of their transaction, and on no other."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction, sessionmaker

from idempotent.checkers.sql.watching import INFO, Watcher
from idempotent.errors import ConfigurationError


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
        # Such a Session may ask for the engine, and then gets the transaction's connection if it has joined it before.
        self._routes = self.kind.get_bind is not Session.get_bind or bool(factory.kw.get("binds"))
        event.listen(factory, "after_begin", _refuse_elsewhere)
        event.listen(factory, "after_soft_rollback", _note_rollback)

    def check(self, kind: type) -> None:
        """Check that a transaction has a handler's argument of this type.

        Raises:
            ConfigurationError: it has none.
        """
        if issubclass(self.kind if issubclass(kind, Session) else Connection, kind):
            return
        if issubclass(kind, Session):
            raise ConfigurationError(
                f"the checker's Sessions are no {kind.__name__}: "
                f"give the checker sessionmaker(engine, class_={kind.__name__}) instead of an engine or a URL"
            )
        if kind.__name__.startswith("Async"):
            raise ConfigurationError(
                f"an {kind.__name__} needs a checker with an AsyncEngine: give it create_async_engine(url) instead of "
                "create_engine(url)"
            )
        raise ConfigurationError(f"a handler takes a Session or a Connection, not {kind.__name__}")

    def open(self, connection: Connection, owner: Watcher) -> Session:
        """A Session on a connection whose transaction has begun."""
        settings = {**self._factory.kw, "bind": connection, "join_transaction_mode": "control_fully"}
        session = self._made(**settings)
        session.info[INFO] = owner
        if not session.autobegin:
            session.begin()
        if self._routes:
            session.connection(bind_arguments={"bind": connection})
        return session

    @staticmethod
    def close(session: Session) -> None:
        """Close a Session. It no longer belongs to a transaction."""
        session.info.pop(INFO, None)
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
    owner: Watcher | None = session.info.get(INFO)
    # A Session whose work was sent, or that has work to send, is in a transaction.
    if owner is not None and session.in_transaction():
        owner.note_discarded(
            f"the handler closed its Session, which discards its work ({call}, or the end of `with session:`); "
            "leave it open, the checker closes it"
        )


def _refuse_elsewhere(session: Session, _transaction: SessionTransaction, connection: Connection) -> None:
    owner: Watcher | None = session.info.get(INFO)
    if owner is not None:
        owner.refuse_elsewhere(connection)


def _note_rollback(session: Session, ended: SessionTransaction) -> None:
    owner: Watcher | None = session.info.get(INFO)
    if owner is not None and ended.parent is None:
        owner.note_discarded(
            "the handler rolled its Session back and returned; raise an exception to roll back"
        )
