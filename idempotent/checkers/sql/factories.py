"""sessions_of: reads which database, and which Sessions for its handlers, an application gives a checker."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, TypeAlias, TypeGuard, cast

from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from idempotent.checkers.sql.asynchronous.sessions import AsyncSessions, synchronous
from idempotent.checkers.sql.sessions import Sessions
from idempotent.errors import ConfigurationError
from idempotent.stores.sql.engines import AnyEngine, is_async

if TYPE_CHECKING:
    from sqlalchemy.engine import URL
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

Database: TypeAlias = (
    "Engine | AsyncEngine | URL | str | sessionmaker[Session] | async_sessionmaker[AsyncSession]"
)


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
    return AsyncSessions.plain() if is_async(database) else Sessions(sessionmaker()), cast(
        "AnyEngine", database
    )


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
