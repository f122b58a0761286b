"""The engines that checkers work with: of a supported database, through a supported driver."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from idempotent.errors import ConfigurationError, MissingExtraError, mask
from idempotent.stores.sql.cursor import NUMBERED
from idempotent.stores.sql.url_options import demand_known_options

# The driver of each database, in SQLAlchemy's words, and its parameter marker. Other drivers are refused: whether a
# transaction is still open, for example, is read from the driver's connection, and each driver shows it differently.
_DRIVERS: Final = {
    "mysql": ("pymysql", "%s"),
    "mariadb": ("pymysql", "%s"),
    "postgresql": ("psycopg", NUMBERED),
    "sqlite": ("pysqlite", "?"),
}
_EXTRAS: Final = {"pymysql": "mysql", "psycopg": "postgres"}
_EXAMPLES: Final = (
    "sqlite:///app.db, mysql+pymysql://user:password@host/db, postgresql+psycopg://user:password@host/db"
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
    if driver != supported:
        raise ConfigurationError(
            f"the driver {driver} is not supported for {database}, only {supported}: "
            f"begin the URL with {_scheme(database)}://"
        )
    return marker


def engine_from(engine_or_url: Engine | URL | str) -> Engine:
    """Return the given engine, or create one from a URL.

    Raises:
        ConfigurationError: the URL is invalid, or names an unsupported driver, database or an in-memory database; or
            the engine is an AsyncEngine.
        MissingExtraError: the database's driver is not installed.
    """
    if isinstance(engine_or_url, Engine):
        engine = engine_or_url
        marker_of(engine.dialect.name, engine.dialect.driver)
    else:
        engine = new_engine(engine_or_url)
    if engine.dialect.name == "sqlite" and engine.url.database in (None, "", ":memory:"):
        raise ConfigurationError(
            "an in-memory SQLite database exists only within one connection; use a file, or MemoryChecker"
        )
    return engine


def new_engine(url: URL | str, **options: Any) -> Engine:
    """Create an engine from a URL.

    Args:
        url: an SQLAlchemy URL.
        options: keywords of `create_engine`.

    Raises:
        ConfigurationError: it is no URL, is invalid, names an unsupported database or driver, or has an unknown option.
        MissingExtraError: the database's driver is not installed.
    """
    if hasattr(url, "sync_engine"):
        raise ConfigurationError(
            "an AsyncEngine cannot be used here, because handlers are synchronous: pass create_engine(url)"
        )
    if not isinstance(url, (str, URL)):
        raise ConfigurationError(
            f"a checker takes an engine, a URL or a sessionmaker(engine), not a {type(url).__name__}: it opens the "
            "connections and Sessions itself"
        )
    try:
        parsed = make_url(url)
        _demand_driver(parsed)
        demand_known_options(parsed)
        return create_engine(parsed, **options)
    except ModuleNotFoundError as error:
        package = error.name or "the driver"
        raise MissingExtraError(package, _EXTRAS.get(package, "all")) from error
    except (ArgumentError, NoSuchModuleError, ValueError):
        # Not `from error`: it may quote the URL, with the password.
        raise ConfigurationError(
            f"the URL is invalid or names an unsupported database. Examples: {_EXAMPLES}"
        ) from None


def _demand_driver(url: URL) -> None:
    """Refuse a URL of another driver, before the driver is imported, and name the right URL."""
    database = url.get_backend_name()
    try:
        marker_of(database, url.get_driver_name())
    except ConfigurationError as error:
        if database not in _DRIVERS:
            raise
        right = mask(url.set(drivername=_scheme(database)).render_as_string(hide_password=True))
        raise ConfigurationError(f"{error}, like {right}") from None


def _scheme(database: str) -> str:
    return database if database == "sqlite" else f"{database}+{_DRIVERS[database][0]}"
