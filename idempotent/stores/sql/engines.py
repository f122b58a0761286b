"""The engines that checkers work with: of a supported database, through a supported driver."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sqlalchemy import Engine, NullPool, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from idempotent.errors import ConfigurationError, MissingExtraError, mask
from idempotent.stores.sql.cursor import NUMBERED

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

AnyEngine: TypeAlias = "Engine | AsyncEngine | URL | str"

# The driver of each database, in SQLAlchemy's words, and its parameter marker. Other drivers are refused: whether a
# transaction is still open, for example, is read from the driver's connection, and each driver shows it differently.
_DRIVERS: Final = {
    "mysql": ("pymysql", "%s"),
    "mariadb": ("pymysql", "%s"),
    "postgresql": ("psycopg", NUMBERED),
    "sqlite": ("pysqlite", "?"),
}
# The asyncio drivers, for an AsyncEngine; the parameter markers are the same.
_ASYNC_DRIVERS: Final = {"mysql": "asyncmy", "mariadb": "asyncmy", "postgresql": "psycopg"}
_ASYNC_SCHEMES: Final = {
    "mysql": "mysql+asyncmy",
    "mariadb": "mariadb+asyncmy",
    "postgresql": "postgresql+psycopg_async",
}
_EXTRAS: Final = {"pymysql": "mysql", "psycopg": "postgres", "asyncmy": "mysql-async"}
_ASYNC_EXTRAS: Final = {"mysql": "mysql-async", "mariadb": "mysql-async", "postgresql": "postgres-async"}
_WHY_NOT: Final = {
    "aiomysql": "aiomysql fails on every binary parameter with PyMySQL 1.2",
    "asyncpg": "asyncpg does not show whether its transaction can still be committed",
    "aiosqlite": "a cancelled statement of aiosqlite keeps the file's write lock",
}
_EXAMPLES: Final = (
    "sqlite:///app.db, mysql+pymysql://user:password@host/db, postgresql+psycopg://user:password@host/db"
)
_PREPARE: Final = "prepare_threshold"
# https://docs.sqlalchemy.org/en/20/dialects/sqlite.html: any other option is ignored, but for a URL with uri=true.
_SQLITE: Final = frozenset(
    {"uri", "timeout", "isolation_level", "detect_types", "check_same_thread", "cached_statements"}
)


def marker_of(database: str, driver: str) -> str:
    """The parameter marker of a database's driver.

    Raises:
        ConfigurationError: the database or the driver is not supported.
    """
    if database not in _DRIVERS:
        raise ConfigurationError(
            f"{database or 'this database'} is not supported; use MySQL, MariaDB, PostgreSQL or SQLite"
        )
    supported, marker = _DRIVERS[database]
    if driver not in (supported, _ASYNC_DRIVERS.get(database)):
        raise _unsupported(database, driver, asynchronous=False)
    return marker


def _unsupported(database: str, driver: str, *, asynchronous: bool) -> ConfigurationError:
    why = f" ({_WHY_NOT[driver]})" if driver in _WHY_NOT else ""
    if database not in _ASYNC_DRIVERS:
        asynchronous = False
    supported = _ASYNC_DRIVERS[database] if asynchronous else _DRIVERS[database][0]
    return ConfigurationError(
        f"the driver {driver} is not supported for {database}{why}, only {supported}: "
        f"begin the URL with {_scheme(database, asynchronous=asynchronous)}://"
    )


def engine_from(engine_or_url: AnyEngine, *, asynchronous: bool = False) -> Engine:
    """Return the given engine, or create one from a URL.

    Args:
        engine_or_url: an engine or URL.
        asynchronous: accept an AsyncEngine too, and return its `sync_engine`.

    Raises:
        ConfigurationError: the URL is invalid, or names an unsupported driver, database or an in-memory database; or
            the engine is an AsyncEngine.
        MissingExtraError: the database's driver is not installed.
    """
    inner = (
        engine_or_url if isinstance(engine_or_url, Engine) else getattr(engine_or_url, "sync_engine", None)
    )
    if isinstance(inner, Engine):
        engine = inner
        if engine is not engine_or_url and not asynchronous:
            raise _refused_async()
        _demand_engine(engine)
    else:
        engine = new_engine(engine_or_url, asynchronous=asynchronous)
    if engine.dialect.name == "sqlite" and engine.url.database in (None, "", ":memory:"):
        raise ConfigurationError(
            "an in-memory SQLite database exists only within one connection; use a file, or MemoryChecker"
        )
    return engine


def _demand_engine(engine: Engine) -> None:
    database, driver = engine.dialect.name, engine.dialect.driver
    if engine.dialect.is_async:
        if driver != _ASYNC_DRIVERS.get(database):
            raise _unsupported(database, driver, asynchronous=True)
        _demand_greenlet(database)
    elif database not in _DRIVERS or driver != _DRIVERS[database][0]:
        marker_of(database, driver)
        raise _unsupported(database, driver, asynchronous=False)


def _refused_async() -> ConfigurationError:
    return ConfigurationError(
        "leased checkers serve async handlers with the synchronous engine: give create_engine(url) instead of an "
        "AsyncEngine, or of the URL of an asyncio driver"
    )


def _demand_greenlet(database: str) -> None:
    try:
        importlib.import_module("greenlet")
    except ImportError as error:
        raise MissingExtraError("greenlet", _ASYNC_EXTRAS[database]) from error


def parsed_url(url: str | URL) -> URL:
    """The parts of an SQLAlchemy URL.

    Raises:
        ConfigurationError: its password has an `@`: SQLAlchemy takes what follows for the host, which is shown.
        ArgumentError, ValueError: it is invalid.
    """
    parsed = make_url(url)
    if "@" in (parsed.host or ""):
        raise ConfigurationError(
            "the password of the URL has an '@': write '@', '/', '#' and '?' as %40, %2F, %23 and %3F"
        )
    return parsed


def new_engine(url: AnyEngine, *, asynchronous: bool = False, **options: Any) -> Engine:
    """Create an engine from a URL.

    Args:
        url: an SQLAlchemy URL.
        asynchronous: accept the URL of an asyncio driver too, and return the `sync_engine` of its AsyncEngine.
        options: keywords of `create_engine`.

    Raises:
        ConfigurationError: it is no URL, is invalid, names an unsupported database or driver, or has an unknown option.
        MissingExtraError: the database's driver is not installed.
    """
    if hasattr(url, "sync_engine"):
        raise _refused_async()
    if not isinstance(url, (str, URL)):
        raise ConfigurationError(
            f"a checker takes an engine, a URL or a sessionmaker(engine), not a {type(url).__name__}: it opens the "
            "connections and Sessions itself"
        )
    try:
        parsed = parsed_url(url)
        _demand_driver(parsed, asynchronous=asynchronous)
        demand_known_options(parsed)
        options.setdefault("connect_args", {}).update(typed_options(parsed))
        if not _is_async(parsed):
            return create_engine(parsed, **options)
        _demand_greenlet(parsed.get_backend_name())
        from sqlalchemy.ext.asyncio import create_async_engine

        return create_async_engine(parsed, **options).sync_engine
    except ModuleNotFoundError as error:
        package = error.name or "the driver"
        extras = _ASYNC_EXTRAS if _is_async(parsed) else {}
        raise MissingExtraError(
            package, extras.get(parsed.get_backend_name(), _EXTRAS.get(package, "all"))
        ) from error
    except (ArgumentError, NoSuchModuleError, ValueError):
        # Not `from error`: it may quote the URL, with the password.
        raise ConfigurationError(
            f"the URL is invalid or names an unsupported database. Examples: {_EXAMPLES}"
        ) from None


LOOKS_ELSEWHERE: Final = "idempotent_looks_elsewhere"
"""The execution option of an engine that `looking_in` made: the URL that it was given, and the schema."""


@contextmanager
def looking_in(engine: Engine, schema: str | None) -> Iterator[Engine]:
    """An engine of the same URL whose sessions look for tables in this schema; None: the engine itself."""
    if schema is None or engine.dialect.name == "sqlite":
        yield engine
        return
    is_postgresql = engine.dialect.name == "postgresql"
    url = engine.url if is_postgresql else engine.url.set(database=schema)
    other = new_engine(url, asynchronous=True, poolclass=NullPool)
    other.update_execution_options(**{LOOKS_ELSEWHERE: (engine.url, schema)})
    if is_postgresql:

        @event.listens_for(other, "connect")
        def _look_there(raw: Any, _record: Any) -> None:
            name = schema.replace('"', '""')
            raw.cursor().execute(f'SET search_path TO "{name}"')
            raw.commit()

    try:
        yield other
    finally:
        other.dispose()


def is_async(engine_or_url: object) -> bool:
    """Whether this is an AsyncEngine or its `sync_engine`, or the URL of an asyncio driver."""
    engine = getattr(engine_or_url, "sync_engine", engine_or_url)
    if isinstance(engine, Engine):
        return engine.dialect.is_async
    with contextlib.suppress(ArgumentError, ValueError):
        return isinstance(engine, (str, URL)) and _is_async(make_url(engine))
    return False


def without_asyncio(url: str) -> str:
    """The URL with the plain driver in the place of an asyncio one, for a program that has no event loop."""
    begin, separator, rest = url.partition("://")
    for database, scheme in _ASYNC_SCHEMES.items():
        if begin.endswith(scheme):
            begin = begin.removesuffix(scheme) + _scheme(database, asynchronous=False)
    return f"{begin}{separator}{rest}"


def _is_async(url: URL) -> bool:
    return url.drivername in _ASYNC_SCHEMES.values()


def _demand_driver(url: URL, *, asynchronous: bool) -> None:
    """Refuse a URL of another driver, before the driver is imported, and name the right URL."""
    database, driver = url.get_backend_name(), url.get_driver_name()
    if database not in _DRIVERS:
        marker_of(database, driver)
    if driver == _DRIVERS[database][0] or (asynchronous and _is_async(url)):
        return
    wants_async = asynchronous and driver in _WHY_NOT
    error = _refused_async() if _is_async(url) else _unsupported(database, driver, asynchronous=wants_async)
    scheme = _scheme(database, asynchronous=wants_async)
    right = mask(url.set(drivername=scheme).render_as_string(hide_password=True))
    raise ConfigurationError(f"{error}, like {right}") from None


def _scheme(database: str, *, asynchronous: bool) -> str:
    if asynchronous and database in _ASYNC_SCHEMES:
        return _ASYNC_SCHEMES[database]
    return database if database == "sqlite" else f"{database}+{_DRIVERS[database][0]}"


def demand_known_options(url: URL) -> None:
    """Refuse an option that the driver does not know: it would be ignored, or fail every connection.

    Raises:
        ConfigurationError: the URL has such an option.
        ModuleNotFoundError: the driver is not installed.
    """
    kind: Any = url.get_dialect()
    if not url.query or (kind.name == "sqlite" and "uri" in url.query):
        return
    module = kind.import_dbapi()
    known = _KNOWN[kind.driver](module)
    # SQLAlchemy translates some options of its own, and passes all others on.
    passed = url.query if kind.name == "sqlite" else kind(dbapi=module).create_connect_args(url)[1]
    unknown = sorted(name for name in url.query if name in passed and name not in known)
    if unknown:
        raise ConfigurationError(
            f"the URL has the option {unknown[0]!r}, which {kind.driver} does not know; remove it, or correct its name"
        )


def typed_options(url: URL) -> dict[str, Any]:
    """The options of a URL that its driver does not take as text, as `create_engine` takes them in `connect_args`.

    Raises:
        ConfigurationError: the value of one is wrong.
    """
    value = url.query.get(_PREPARE)
    if value is None or url.get_backend_name() != "postgresql":
        return {}
    text = str(value)
    if text != "None" and not text.isdecimal():
        raise ConfigurationError(
            f"{_PREPARE} must be a number of executions, or None for no prepared statements, not {text!r}"
        )
    return {_PREPARE: None if text == "None" else int(text)}


def _of_psycopg(driver: Any) -> Collection[str]:
    of_libpq = {option.keyword.decode() for option in driver.pq.Conninfo.get_defaults()}
    return of_libpq | inspect.signature(driver.Connection.connect).parameters.keys()


_KNOWN: Final[Mapping[str, Callable[[Any], Collection[str]]]] = {
    "pymysql": lambda driver: inspect.signature(driver.connections.Connection).parameters,
    "asyncmy": lambda driver: inspect.signature(driver.asyncmy.connect).parameters,
    "psycopg": _of_psycopg,
    "pysqlite": lambda _: _SQLITE,
}
