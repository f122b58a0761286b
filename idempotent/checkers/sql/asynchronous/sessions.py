"""AsyncSessions: makes the AsyncSessions of async handlers, around the Sessions of their transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session, sessionmaker

from idempotent.checkers.sql.sessions import Sessions
from idempotent.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker


class AsyncSessions(Sessions):
    """Makes AsyncSessions.

    Args:
        factory: the application's `async_sessionmaker`, or a plain one.
        inner: its `synchronous` form.
    """

    def __init__(self, factory: async_sessionmaker[AsyncSession], inner: sessionmaker[Session]) -> None:
        super().__init__(inner)
        self._async_factory = factory

    @classmethod
    def plain(cls) -> AsyncSessions:
        """For an application that gives only its engine."""
        from sqlalchemy.ext.asyncio import async_sessionmaker

        return cls(async_sessionmaker(), sessionmaker())

    @property
    def async_kind(self) -> type[AsyncSession]:
        """The class of the AsyncSessions, as the application made it."""
        return self._async_factory.class_

    def check(self, kind: type) -> None:
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

        if issubclass(self.async_kind if issubclass(kind, AsyncSession) else AsyncConnection, kind):
            return
        if issubclass(kind, AsyncSession):
            raise ConfigurationError(
                f"the checker's AsyncSessions are no {kind.__name__}: give the checker "
                f"async_sessionmaker(engine, class_={kind.__name__}) instead of an engine or a URL"
            )
        raise ConfigurationError(
            "a handler of a checker with an AsyncEngine is an `async def`, and takes an AsyncSession or an "
            f"AsyncConnection, not a {kind.__name__}; for a synchronous handler give the checker create_engine(url)"
        )

    def around(self, session: Session, connection: AsyncConnection) -> AsyncSession:
        """An AsyncSession around a transaction's Session, on the transaction's connection."""
        settings: dict[str, Any] = {
            **self._async_factory.kw,
            "bind": connection,
            "sync_session_class": lambda **_: session,
        }
        return self.async_kind(**settings)


def synchronous(factory: async_sessionmaker[Any]) -> sessionmaker[Session]:
    """The `sessionmaker` of the Sessions inside of the factory's AsyncSessions.

    Raises:
        ConfigurationError: its `sync_session_class` is no class of Sessions, and no sessionmaker.
    """
    settings = {name: _synchronous(value) for name, value in factory.kw.items()}
    kind = settings.pop("sync_session_class", None) or factory.class_.sync_session_class
    if isinstance(kind, sessionmaker):
        settings = {**kind.kw, **settings}
        kind = kind.class_
    if not (isinstance(kind, type) and issubclass(kind, Session)):
        raise ConfigurationError(
            f"the sync_session_class {kind!r} of the async_sessionmaker is no class: give it a subclass of Session"
        )
    return sessionmaker(class_=kind, **settings)


def _synchronous(setting: Any) -> Any:
    """A setting with the engine in place of an AsyncEngine."""
    if isinstance(setting, dict):
        return {name: _synchronous(value) for name, value in setting.items()}
    return getattr(setting, "sync_engine", setting)
