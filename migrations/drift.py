"""Find the differences between the tables in a store and the expected ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import (
    BigInteger,
    Connection,
    Engine,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    inspect,
)
from sqlalchemy.engine.reflection import Inspector
from sqlalchemy.exc import DBAPIError

from idempotent.errors import SchemaError
from idempotent.migrations.revisions import is_newer, recorded
from idempotent.migrations.store import Target, bridged, connect
from idempotent.schema import (
    DEFAULT_TABLE,
    dedup_tables,
    offsets_name,
    outbox_tables,
    run_tables,
    validate_table_name,
    version_name,
)
from idempotent.stores.sql.cursor import Row
from idempotent.stores.sql.faults import Fault, fault_of, options_for, to_create
from idempotent.stores.sql.grants import RIGHTS, account_of, grant, usage_of_schema

_QMQ_COLUMNS = {"id", "k", "update_at"}


class DriftKind(Enum):
    """The kind of a difference."""

    NEWER_REVISION = "revision of a newer version"
    FOREIGN_TABLE = "foreign table"
    MISSING_TABLE = "missing table"
    UNSEEN_TABLE = "table that this user may not see"
    MISSING_COLUMN = "missing column"
    EXTRA_COLUMN = "extra column"
    TYPE = "type"
    NULLABLE = "nullability"
    PRIMARY_KEY = "primary key"
    MISSING_INDEX = "missing index"
    EXTRA_UNIQUE = "extra unique constraint"
    ENGINE = "storage engine"


_UNFINISHED = (DriftKind.MISSING_TABLE, DriftKind.MISSING_INDEX)


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference.

    Attributes:
        kind: what differs.
        table: the table.
        name: the column or index; empty for the table itself.
        detail: the difference in words.
        matters: whether statements of this version depend on it; if not, a newer version may have made it.
    """

    kind: DriftKind
    table: str
    name: str = ""
    detail: str = ""
    matters: bool = field(default=True, compare=False, repr=False)

    def __str__(self) -> str:
        """The difference in one line."""
        place = f"{self.table}.{self.name}" if self.name else self.table
        return f"{place}: {self.kind.value}" + (f": {self.detail}" if self.detail else "")


@bridged
def check(target: Target, *, table: str = DEFAULT_TABLE) -> list[Drift]:
    """Compare the tables in the store at `target` with those that this version of the library expects.

    Returns an empty list when they are equal. Only reads. An added non-unique index or storage parameter is not
    drift, and neither is a missing run ledger, or outbox, without a recorded revision: an application's own history
    need not have them. Nor is one on which the user has no right. Where a newer version of the library has migrated,
    only what this version needs is drift, such as a missing column; not an added column that may be left out, a wider
    type, or a missing index that is not unique.

    Raises:
        ConfigurationError: the table name is invalid, or the database is not supported.
        SQLAlchemyError: the database failed or is unreachable.
    """
    validate_table_name(table)
    with connect(target) as connection:
        return _differences(connection, table)


def _differences(connection: Connection, table: str) -> list[Drift]:
    metadata = MetaData()
    dedup_tables(metadata, table)
    existing = set(inspect(connection).get_table_names())
    has_revision = version_name(table) in existing
    for define in (run_tables, outbox_tables):
        optional = MetaData()
        define(optional, table)
        names = optional.tables.keys()
        if existing & names or (has_revision and not all(_grants(connection, name) for name in names)):
            define(metadata, table)
    drifts = [_seen(drift, connection) for drift in compare(connection, metadata)]
    # Few applications use the offsets.
    unused = (DriftKind.UNSEEN_TABLE, offsets_name(table))
    drifts = [drift for drift in drifts if (drift.kind, drift.table) != unused]
    # Not asked for without need: who runs a consumer may lack the right to read it.
    revision = recorded(connection, table) if drifts and has_revision else None
    if not is_newer(revision):
        return drifts
    lacking = [drift for drift in drifts if drift.matters]
    detail = f"{revision!r}, without all that this version needs: update idempotent-consumer"
    return [Drift(DriftKind.NEWER_REVISION, table, detail=detail), *lacking] if lacking else []


def _seen(drift: Drift, connection: Connection) -> Drift:
    """A missing table as one that the user may not see, if that may be why it is missing."""
    if drift.kind is DriftKind.MISSING_TABLE and (granted := _grants(connection, drift.table)):
        return Drift(
            DriftKind.UNSEEN_TABLE, drift.table, detail=f"type, as a user who may grant it: {granted}"
        )
    return drift


def _grants(connection: Connection, table: str) -> str | None:
    """What to GRANT to this user, who does not see a table; None: no right is what he lacks."""

    def ask(statement: str) -> Sequence[Row]:
        return [tuple(row) for row in connection.exec_driver_sql(statement)]

    database = connection.dialect.name
    if database == "postgresql":
        return usage_of_schema(table, ask)
    if database == "sqlite":
        return None
    try:
        ask(f"SELECT 1 FROM `{table}` WHERE 1 = 0")
    except DBAPIError as error:
        if fault_of(error, connection.engine) is Fault.DENIED:
            name = f"`{connection.engine.url.database}`.`{table}`"
            return grant(RIGHTS, name, account_of("mysql", ask))
    return None


def compare(connection: Connection, metadata: MetaData) -> list[Drift]:
    """Differences between the tables of `metadata` and those of the same name in the store."""
    inspector = inspect(connection)
    existing = set(inspector.get_table_names())
    present = [name for name in metadata.tables if name in existing]
    qmq = [name for name in present if _columns(inspector, name) == _QMQ_COLUMNS]
    found = [Drift(DriftKind.FOREIGN_TABLE, name, detail=_qmq(name)) for name in qmq]
    found += [
        Drift(DriftKind.MISSING_TABLE, name, detail="run the migrations")
        for name in metadata.tables
        if name not in present
    ]
    known = [table for name, table in metadata.tables.items() if name in present and name not in qmq]
    found += _alembic_differences(connection, metadata, {table.name for table in known})
    for table in known:
        found += _other_differences(connection, inspector, table)
    return found


def refuse_foreign(context: MigrationContext, metadata: MetaData) -> None:
    """Raise SchemaError if a table of that name exists and differs from its definition in `metadata`.

    A missing table or index is accepted: MySQL commits each DDL statement, so a killed run leaves only some of them.
    Offline (``--sql``) no database is inspected.
    """
    if context.as_sql or context.connection is None:
        return
    wrong = [drift for drift in compare(context.connection, metadata) if drift.kind not in _UNFINISHED]
    if not wrong:
        return
    qmq = next((drift.detail for drift in wrong if drift.kind is DriftKind.FOREIGN_TABLE), None)
    differences = "; ".join(map(str, wrong))
    reason = qmq or f"an existing table differs from the one that the migration would create: {differences}"
    raise SchemaError(
        f'{reason}. Nothing was changed. Choose another name with table="...", or rename the existing table'
    )


def refuse_incomplete(context: MigrationContext, metadata: MetaData, table: str) -> None:
    """Raise SchemaError if a table or column of `metadata`, whose revisions are recorded, is missing.

    The revisions would not be run again, so the store would stay unusable. Offline (``--sql``) nothing is inspected.
    """
    if context.as_sql or context.connection is None:
        return
    inspector = inspect(context.connection)
    existing = set(inspector.get_table_names())
    missing = [Drift(DriftKind.MISSING_TABLE, name) for name in metadata.tables if name not in existing]
    for name, definition in metadata.tables.items():
        if name in existing:
            found = _columns(inspector, name)
            missing += [
                Drift(DriftKind.MISSING_COLUMN, name, column.name)
                for column in definition.columns
                if column.name not in found
            ]
    if missing:
        raise SchemaError(
            f"the migrations of {table!r} are recorded as done, but a part of the tables is gone: "
            f"{'; '.join(map(str, missing))}. Nothing was changed. "
            f"Type: {_way_out(missing, table, context.connection.engine)}; if what was in it must not be "
            "forgotten, restore it from a backup instead)"
        )


def refuse_lacking(connection: Connection, table: str) -> None:
    """Raise SchemaError if a table that a newer version has migrated lacks something that this version needs."""
    differences = _differences(connection, table)
    if differences:
        raise SchemaError(f"{'; '.join(map(str, differences))}. Nothing was changed")


def _way_out(missing: list[Drift], table: str, engine: Engine) -> str:
    if any(drift.kind is DriftKind.MISSING_COLUMN for drift in missing):
        named = options_for(engine, table)
        return (
            f"idempotent migrate downgrade {named} && idempotent migrate upgrade {named} (this removes the tables with "
            "all their keys, and what waits in the outbox, and creates them again"
        )
    return f"{to_create(engine, table)} (this creates the missing tables, empty"


def _qmq(name: str) -> str:
    return f"{name!r} is QMQ's own deduplication table (columns id, k, update_at), not this library's"


def _columns(inspector: Inspector, table: str) -> set[str]:
    return {column["name"].lower() for column in inspector.get_columns(table)}


def _alembic_differences(connection: Connection, metadata: MetaData, tables: set[str]) -> Iterator[Drift]:
    def ours(name: str | None, type_: str, _: Any) -> bool:
        return type_ != "table" or name in tables

    options = {"include_name": ours, "compare_type": True, "compare_server_default": False}
    context = MigrationContext.configure(connection, opts=options)
    with _quiet():
        differences = compare_metadata(context, metadata)
    for difference in differences:
        for step in difference if isinstance(difference, list) else [difference]:
            drift = _translate(step, connection)
            if drift is not None and drift.table in tables:
                yield drift


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Alembic from reporting what it detects: this may run in a migration of the application's own."""
    logger = logging.getLogger("alembic.autogenerate")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


def _translate(step: tuple[Any, ...], connection: Connection) -> Drift | None:
    """One of Alembic's difference tuples as a Drift; None for a harmless one or one found by `_other_differences`."""

    def sql(type_: Any) -> str:
        return str(type_.compile(dialect=connection.dialect))

    match step:
        case ("add_column", _, table, column):
            return Drift(DriftKind.MISSING_COLUMN, table, column.name, f"expected {sql(column.type)}")
        case ("remove_column", _, table, column):
            detail = f"found {sql(column.type)}"
            must = not column.nullable and column.server_default is None
            return Drift(DriftKind.EXTRA_COLUMN, table, column.name, detail, matters=must)
        case ("modify_type", _, table, column, _, found, expected):
            detail = f"found {sql(found)}, expected {sql(expected)}"
            return Drift(DriftKind.TYPE, table, column, detail, matters=not _is_wider(found, expected))
        case ("modify_nullable", _, table, column, _, _, nullable):
            found, expected = ("NOT NULL", "NULL") if nullable else ("NULL", "NOT NULL")
            detail = f"found {found}, expected {expected}"
            return Drift(DriftKind.NULLABLE, table, column, detail, matters=nullable)
        case ("add_index", index):
            return Drift(
                DriftKind.MISSING_INDEX, index.table.name, index.name, _on(index), matters=bool(index.unique)
            )
        case ("remove_index", index) if index.unique:
            return Drift(DriftKind.EXTRA_UNIQUE, index.table.name, index.name, _on(index))
        case ("remove_constraint", UniqueConstraint() as unique):
            return Drift(DriftKind.EXTRA_UNIQUE, unique.table.name, str(unique.name or ""), _on(unique))
    return None


def _is_wider(found: Any, expected: Any) -> bool:
    """Whether a column of this type takes, and returns unchanged, whatever one of the expected type takes."""
    if isinstance(found, BigInteger):
        return isinstance(expected, Integer)
    return (
        isinstance(found, String)
        and isinstance(expected, String)
        and found.length is not None
        and expected.length is not None
        and found.length > expected.length
    )


def _other_differences(connection: Connection, inspector: Inspector, table: Table) -> Iterator[Drift]:
    """The differences that Alembic does not find: the primary key, and on MySQL an engine without transactions."""
    found = inspector.get_pk_constraint(table.name)["constrained_columns"]
    expected = [column.name for column in table.primary_key.columns]
    if found != expected:
        detail = f"found ({', '.join(found) or 'none'}), expected ({', '.join(expected)})"
        yield Drift(DriftKind.PRIMARY_KEY, table.name, detail=detail)
    dialect = connection.dialect.name
    if dialect in ("mysql", "mariadb"):
        options: dict[str, Any] = dict(inspector.get_table_options(table.name))
        engine = str(options.get(f"{dialect}_engine", "unknown"))
        if engine.lower() != "innodb":
            yield Drift(DriftKind.ENGINE, table.name, detail=f"found {engine}, expected InnoDB")


def _on(index: Index | UniqueConstraint) -> str:
    return f"on ({', '.join(column.name for column in index.columns)})"
