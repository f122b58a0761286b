"""Database: one of Django's databases, as the SQL of the key table needs it: on Django's own connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from django.core.exceptions import SynchronousOnlyOperation
from django.db import Error, connections, transaction
from sqlalchemy import Engine, NullPool, create_engine
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from idempotent.errors import ConfigurationError, SchemaError, StoreError
from idempotent.policy import causes
from idempotent.schema import DEFAULT_TABLE
from idempotent.stores.sql.cursor import DriverConnection
from idempotent.stores.sql.dialects import Conflict, SqlDialect, dialect_for
from idempotent.stores.sql.faults import Fault, as_store_error, fault_of

T = TypeVar("T")

_DRIVERS: Final = {"postgresql": "psycopg", "mysql": "pymysql", "sqlite": "sqlite3"}
_SCHEMES: Final = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "sqlite": "sqlite"}
# By Django's connection. SQLite refuses to define the clock a second time, while a statement is read.
_drivers: Final[WeakKeyDictionary[Any, DriverConnection]] = WeakKeyDictionary()
_INSTEAD: Final = {
    "postgresql": "install psycopg 3, which Django prefers to psycopg2",
    "mysql": "call pymysql.install_as_MySQLdb() in the settings, before Django loads its backend",
}


class Database:
    """One of Django's databases. Each thread has its own connection to it, as everywhere in Django.

    Args:
        using: its alias.
    """

    table: Final = DEFAULT_TABLE

    def __init__(self, using: str) -> None:
        self.using: Final = using

    @property
    def connection(self) -> Any:
        """This thread's connection."""
        return connections[self.using]

    @cached_property
    def engine(self) -> Engine:
        """What knows the errors of the driver, and the name of the database. It never connects.

        Raises:
            ConfigurationError: the database is not supported.
        """
        vendor, settings = self.connection.vendor, self.connection.settings_dict
        if vendor not in _SCHEMES:
            raise ConfigurationError(
                f"{vendor} is not supported; use PostgreSQL, MySQL, MariaDB or SQLite for {self.using!r}"
            )
        url = URL.create(_SCHEMES[vendor], database=str(settings["NAME"]))
        if vendor != "sqlite":
            port = int(settings["PORT"]) if settings["PORT"] else None
            url = url.set(username=settings["USER"] or None, host=settings["HOST"] or None, port=port)
        try:
            return create_engine(url, poolclass=NullPool)
        except ImportError as error:
            raise self._other_driver(vendor) from error

    @cached_property
    def dialect(self) -> SqlDialect:
        """The properties of its SQL.

        Raises:
            ConfigurationError: the database, or its driver, is not supported.
            StoreError: a server of MySQL or MariaDB did not say which of them it is.
        """
        found = dialect_for(self.engine.dialect)
        if found.name == "mysql":
            with self.translated():
                if self.connection.mysql_is_mariadb:
                    return replace(found, conflict=Conflict.RETURNS_ALL)
        return found

    def driver(self) -> DriverConnection:
        """The driver's connection behind Django's, which is open.

        Raises:
            ConfigurationError: the driver is not supported.
        """
        connection = self.connection
        known = _drivers.get(connection)
        if known is not None and known.raw is connection.connection:
            return known
        raw = connection.connection
        modules = {kind.__module__.partition(".")[0] for kind in type(raw).__mro__}
        if _DRIVERS[connection.vendor] not in modules:
            raise self._other_driver(connection.vendor)
        self.dialect.prepare(raw)
        driver = DriverConnection(raw)
        _drivers[connection] = driver
        return driver

    def _other_driver(self, vendor: str) -> ConfigurationError:
        return ConfigurationError(
            f"the database {self.using!r} has another driver than {_DRIVERS[vendor]}: {_INSTEAD.get(vendor, '')}"
        )

    def run(self, work: Callable[..., T], *arguments: Any, answer_s: float | None = None) -> T:
        """Run repeatable statements: in the open `atomic()`, or each by itself.

        Args:
            work: called with the driver's connection and the arguments.
            arguments: passed to `work`.
            answer_s: left alone: how long an answer may take is up to the settings of Django's connection.

        Raises:
            StoreError: the database failed or did not answer.
        """
        del answer_s
        connection = self.connection
        if connection.in_atomic_block:
            return self.run_atomically(work, *arguments)
        with self.translated():
            try:
                connection.ensure_connection()
                return self._call(work, *arguments)
            except Error as error:
                if self.fault(error) is not Fault.DISCONNECTED:
                    raise
            # It may have been idle for long: the next one is new.
            connection.close()
            connection.ensure_connection()
            return self._call(work, *arguments)

    def run_atomically(self, work: Callable[..., T], *arguments: Any) -> T:
        """Like `run`, with the statements in one `atomic()`."""
        with self.translated(), transaction.atomic(self.using):
            self.connection.validate_no_broken_transaction()
            return self._call(work, *arguments)

    def _call(self, work: Callable[..., T], *arguments: Any) -> T:
        with self.connection.wrap_database_errors:
            return work(self.driver(), *arguments)

    @property
    def connections(self) -> Database:
        """Itself, for who expects a store: the admin and the recorder of keys."""
        return self

    def fault(self, error: BaseException) -> Fault | None:
        """What kind of error of the database an exception is; None: none of the driver's."""
        kind = self.engine.dialect.loaded_dbapi.Error
        for cause in causes(error):
            if isinstance(cause, kind):
                return fault_of(cause, self.engine)
        return None

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise the errors of Django and of the driver as StoreErrors."""
        try:
            yield
        except SynchronousOnlyOperation as error:
            raise ConfigurationError(
                "Django has no asynchronous transactions: call the protected function with sync_to_async"
            ) from error
        except (Error, SQLAlchemyError, self.engine.dialect.loaded_dbapi.Error) as error:
            raise self.store_error(error) from error

    def store_error(self, error: BaseException) -> StoreError:
        """The StoreError that says what an error of Django or of the driver means."""
        kind = self.engine.dialect.loaded_dbapi.Error
        original = next((cause for cause in causes(error) if isinstance(cause, kind)), error)
        if self.fault(error) is Fault.SCHEMA:
            return SchemaError(
                f"the tables of keys are missing in the database {self.using!r}, or differ: {original}. Add "
                f'"idempotent.adapters.django" to INSTALLED_APPS and type: python manage.py migrate --database '
                f"{self.using}"
            )
        return as_store_error(original, self.engine, self.table)
