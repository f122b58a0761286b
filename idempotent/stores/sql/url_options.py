"""The options in the query of a database's URL: those that its driver knows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from sqlalchemy.engine import URL

from idempotent.errors import ConfigurationError

_PREPARE: Final = "prepare_threshold"
# https://docs.sqlalchemy.org/en/20/dialects/sqlite.html: any other option is ignored, but for a URL with uri=true.
_SQLITE: Final = frozenset(
    {"uri", "timeout", "isolation_level", "detect_types", "check_same_thread", "cached_statements"}
)


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
