"""Find the differences between the tables in a store and the expected ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Engine, MetaData
from sqlalchemy.exc import DBAPIError

from idempotent.errors import SchemaError
from idempotent.migrations.revisions import is_newer, recorded
from idempotent.migrations.store import Target, bridged, connect
from idempotent.migrations.tables import Catalogue, TableFacts, home_of, refuse_elsewhere, wanted
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

_QMQ_COLUMNS: Final = {"id", "k", "update_at"}
_INTEGERS: Final = ("SMALLINT", "INTEGER", "BIGINT")
_VARCHAR: Final = re.compile(r"VARCHAR\((\d+)\)")


class DriftKind(Enum):
    """The kind of a difference."""

    NEWER_REVISION = "revision of a newer version"
    FOREIGN_TABLE = "foreign table"
    MISSING_TABLE = "missing table"
    UNSEEN_TABLE = "table that this user may not see"
    OTHER_SCHEMA = "in another schema"
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
    # Where the checkers find them, which are led by the key table, and an outbox by its own.
    home = home_of(connection, table)
    catalogue = Catalogue(connection, home)
    has_revision = catalogue.find(version_name(table)) is not None
    keys = MetaData()
    dedup_tables(keys, table)
    found = compare(connection, keys, home)
    for define in (run_tables, outbox_tables):
        part = MetaData()
        define(part, table)
        names = [*part.tables]
        where = home if has_revision else home_of(connection, names[0]) or home
        present = any(map(Catalogue(connection, where).find, names))
        if present or (has_revision and not all(_grants(connection, name) for name in names)):
            found += compare(connection, part, where)
    drifts = [_seen(drift, connection) for drift in found]
    # Few applications use the offsets.
    unused = (DriftKind.UNSEEN_TABLE, offsets_name(table))
    drifts = [drift for drift in drifts if (drift.kind, drift.table) != unused]
    # Not asked for without need: who runs a consumer may lack the right to read it.
    revision = recorded(connection, table, home) if drifts and has_revision else None
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


def compare(connection: Connection, metadata: MetaData, schema: str | None = None) -> list[Drift]:
    """Differences between the tables of `metadata` and those of the same name in the store; see `Catalogue`."""
    catalogue = Catalogue(connection, schema)
    present = {name: catalogue.find(name) for name in metadata.tables}
    found = _elsewhere(catalogue, [name for name, facts in present.items() if facts is None])
    lost = {drift.table for drift in found}
    for name, facts in present.items():
        if facts is not None and facts.columns.keys() == _QMQ_COLUMNS:
            found.append(Drift(DriftKind.FOREIGN_TABLE, name, detail=_qmq(name)))
        elif facts is not None:
            expected = wanted(metadata.tables[name], connection.dialect)
            found += [*_columns(name, facts, expected), *_keys_and_engine(name, facts, expected)]
        elif name not in lost:
            found.append(Drift(DriftKind.MISSING_TABLE, name, detail="run the migrations"))
    return found


def _elsewhere(catalogue: Catalogue, names: Iterable[str]) -> list[Drift]:
    """Tables that the session finds in another schema than the one in which they have to be."""
    quoted = catalogue.connection.dialect.identifier_preparer.quote_identifier
    return [
        Drift(
            DriftKind.OTHER_SCHEMA,
            name,
            detail=f"found in {schema!r}, expected in {catalogue.schema!r}; type in SQL: "
            f"ALTER TABLE {quoted(schema)}.{quoted(name)} SET SCHEMA {quoted(str(catalogue.schema))}",
        )
        for name, schema in catalogue.elsewhere(names).items()
    ]


def refuse_foreign(context: MigrationContext, metadata: MetaData) -> None:
    """Raise SchemaError if a table of that name exists and differs from its definition in `metadata`.

    Or if it is in another schema, see `refuse_elsewhere`.
    A missing table or index is accepted: MySQL commits each DDL statement, so a killed run leaves only some of them.
    Offline (``--sql``) no database is inspected.
    """
    if context.as_sql or context.connection is None:
        return
    refuse_elsewhere(context.connection, [*metadata.tables])
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
    catalogue = Catalogue(context.connection)
    missing: list[Drift] = []
    for name, definition in metadata.tables.items():
        found = catalogue.find(name)
        if found is None:
            missing.append(Drift(DriftKind.MISSING_TABLE, name))
        else:
            missing += [
                Drift(DriftKind.MISSING_COLUMN, name, column.name)
                for column in definition.columns
                if column.name not in found.columns
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


def _columns(table: str, found: TableFacts, expected: TableFacts) -> Iterator[Drift]:
    for name, column in expected.columns.items():
        there = found.columns.get(name)
        if there is None:
            yield Drift(DriftKind.MISSING_COLUMN, table, name, f"expected {column.type}")
            continue
        detail = f"found {there.type}, expected {column.type}"
        if there.type != column.type:
            yield Drift(DriftKind.TYPE, table, name, detail, matters=not _is_wider(there.type, column.type))
        elif column.given and not there.given:
            yield Drift(DriftKind.TYPE, table, name, f"{detail}, numbered by the database")
        if there.nullable != column.nullable:
            words = ("NOT NULL", "NULL") if column.nullable else ("NULL", "NOT NULL")
            detail = "found {}, expected {}".format(*words)
            yield Drift(DriftKind.NULLABLE, table, name, detail, matters=column.nullable)
    for name, column in found.columns.items():
        if name not in expected.columns:
            must = not column.nullable and not column.given
            yield Drift(DriftKind.EXTRA_COLUMN, table, name, f"found {column.type}", matters=must)


def _keys_and_engine(table: str, found: TableFacts, expected: TableFacts) -> Iterator[Drift]:
    for name, index in expected.indexes.items():
        if found.indexes.get(name) != index:
            unique, columns = index
            yield Drift(DriftKind.MISSING_INDEX, table, name, f"on ({', '.join(columns)})", matters=unique)
    for name, index in found.indexes.items():
        unique, columns = index
        if unique and expected.indexes.get(name) != index:
            yield Drift(DriftKind.EXTRA_UNIQUE, table, name, f"on ({', '.join(columns)})")
    if found.key != expected.key:
        detail = f"found ({', '.join(found.key) or 'none'}), expected ({', '.join(expected.key)})"
        yield Drift(DriftKind.PRIMARY_KEY, table, detail=detail)
    if found.engine != expected.engine:
        # Such as MyISAM, which has no transactions.
        yield Drift(
            DriftKind.ENGINE, table, detail=f"found {found.engine or 'unknown'}, expected {expected.engine}"
        )


def _is_wider(found: str, expected: str) -> bool:
    """Whether a column of this type takes, and returns unchanged, whatever one of the expected type takes."""
    if found in _INTEGERS and expected in _INTEGERS:
        return _INTEGERS.index(found) > _INTEGERS.index(expected)
    longer, shorter = _VARCHAR.match(found), _VARCHAR.match(expected)
    return longer is not None and shorter is not None and int(longer[1]) > int(shorter[1])
