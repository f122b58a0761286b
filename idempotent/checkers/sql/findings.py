"""What `idempotent doctor` says of a database: its tables, the rights of the user, and the server's settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sqlalchemy import MetaData, Table
from sqlalchemy.exc import SQLAlchemyError

from idempotent.admin import Finding, Level
from idempotent.checkers.sql.clusters import cluster_findings
from idempotent.checkers.sql.store import SqlStore
from idempotent.errors import SchemaError, StoreError
from idempotent.schema import dedup_tables, failures_name, run_tables
from idempotent.stores.sql.cursor import DriverConnection, query
from idempotent.stores.sql.engines import looking_in
from idempotent.stores.sql.faults import as_store_error, in_own_history, to_create
from idempotent.stores.sql.grants import RIGHTS, showing_all
from idempotent.stores.sql.rights import grant_on, hidden_rows, missing_rights

_OFF: Final = ("off", "0", "false", "none")
_DAY_US: Final = 86_400_000_000
# After as long as this, keep-alive probes find a machine that is gone, as Linux ships them.
_PROBED_AFTER_S: Final = 7200.0
# Handlers call other services for as long.
_PAUSES_S: Final = 10.0
_SHOWN: Final = 5


def sql_findings(store: SqlStore, *, transactional: bool = False) -> list[Finding]:
    """Check the tables, the server's settings, and for keys that gc should have deleted. Changes nothing.

    Args:
        store: the database.
        transactional: handlers change tables of this database in the transaction of the key.

    Raises:
        StoreError: the database did not answer.
    """
    found = [*_tables(store)]
    if any(finding.final for finding in found):
        return found
    rights = [*_rights(store)]
    if any(finding.final for finding in rights):
        return [*found, *rights]
    dialect = store.connections.dialect

    def look(driver: DriverConnection) -> list[Finding]:
        settings = {"mysql": _mysql, "postgresql": _postgresql, "sqlite": _sqlite}[dialect.name]
        without = _without_transactions(driver, store) if transactional else ()
        return [*settings(driver), *without, _backlog(driver, store)]

    # What the user has no right to would be refused once more.
    denied = any(finding.level is Level.ERROR for finding in rights)
    refused = () if denied else _refused(store)
    return [
        *(*found, *rights, *_hidden(store), *_autocommit(store), *refused),
        *store.connections.run(look),
        *cluster_findings(store),
    ]


def _tables(store: SqlStore) -> Iterator[Finding]:
    # Alembic is imported only for this.
    from idempotent.migrations import DriftKind, check

    try:
        with looking_in(store.engine, store.schema) as engine:
            drifts = check(engine, table=store.table)
    except SQLAlchemyError as error:
        raise as_store_error(error, store.engine, store.table) from error
    if not drifts:
        yield Finding(Level.OK, f"the table {store.table} is as this version needs it")
        return
    missing = [drift.table for drift in drifts if drift.kind is DriftKind.MISSING_TABLE]
    create = (
        f"{to_create(store.engine, store.table, store.schema)} (or, {in_own_history(missing, store.table)})"
    )
    # Without these, no keys can be looked at.
    needed = (store.table, failures_name(store.table))
    is_newer = drifts[0].kind is DriftKind.NEWER_REVISION
    for drift in drifts:
        match drift.kind:
            case _ if is_newer:
                hint = "update idempotent-consumer: a newer version has changed the tables"
            case DriftKind.MISSING_TABLE:
                hint = f"type: {create}; if it was lost, restore it from a backup instead"
            case DriftKind.UNSEEN_TABLE:
                hint = f"if it is not there for an administrator either, type: {create}"
            case DriftKind.OTHER_SCHEMA:
                hint = "docs/databases.md says in which schema tables are looked for"
            case _:
                hint = "docs/migrations.md says how each table has to look"
        gone = drift.kind in (DriftKind.MISSING_TABLE, DriftKind.UNSEEN_TABLE, DriftKind.OTHER_SCHEMA)
        yield Finding(Level.ERROR, str(drift), hint, final=gone and drift.table in needed)


def _rights(store: SqlStore) -> Iterator[Finding]:
    """Whether the user of this connection may do what a consumer does, and what Spark's ledger does."""
    tables = dedup_tables(MetaData(), store.table)
    for table in (tables.keys, tables.failures):
        missing = missing_rights(store.connections, table)
        if missing:
            yield Finding(
                Level.ERROR,
                f"this user has no right to {', '.join(missing)} in {table.name}: consumers cannot use it",
                f"type, as a user who may grant it: {grant_on(store.connections, table.name)}",
                final="SELECT" in missing,
            )
    runs = run_tables(MetaData(), store.table)
    yield from _optional_rights(store, [tables.offsets], "an OffsetChecker")
    yield from _optional_rights(store, [runs.runs, runs.claims], "Spark's run ledger")


def _hidden(store: SqlStore) -> Iterator[Finding]:
    """Whether PostgreSQL's row level security hides keys: they run again, or cannot be stored."""
    for table, has_policy in hidden_rows(store.connections, [store.table, failures_name(store.table)]):
        yield Finding(
            Level.WARNING if has_policy else Level.ERROR,
            f"row level security hides rows of {table} from this user"
            + (" if its policies say so" if has_policy else ", and lets him store none"),
            f"type, as the owner of the table: {showing_all(table)}",
        )


def _optional_rights(store: SqlStore, tables: Sequence[Table], user: str) -> Iterator[Finding]:
    """The same for tables that few applications use: a user without any right on them does not."""
    try:
        lacking = {table.name: missing_rights(store.connections, table) for table in tables}
    except SchemaError:
        return  # said before, if they have to be there
    unused = all(missing == [*RIGHTS] for missing in lacking.values())
    for table, missing in lacking.items():
        if missing:
            yield Finding(
                Level.OK if unused else Level.ERROR,
                f"this user has no right to {', '.join(missing)} in {table}, which only {user} uses",
                f"if it is to use it, type as a user who may grant it: {grant_on(store.connections, table)}",
            )


def _refused(store: SqlStore) -> Iterator[Finding]:
    try:
        store.ping()
    except StoreError as error:
        yield Finding(
            Level.ERROR,
            str(error),
        )


def _autocommit(store: SqlStore) -> Iterator[Finding]:
    words = {name.lower(): str(value).lower() for name, value in store.engine.url.query.items()}
    if words.get("autocommit", "0") not in _OFF or words.get("isolation_level") == "autocommit":
        yield Finding(
            Level.ERROR,
            "the URL switches autocommit on: a TransactionalSqlChecker has no transaction then",
            "remove autocommit or isolation_level from the URL",
        )


def _mysql(driver: DriverConnection) -> Iterator[Finding]:
    settings = {
        str(name).lower(): str(value).lower()
        for name, value in query(
            driver,
            "SHOW VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin',"
            " 'binlog_format', 'version', 'idle_transaction_timeout', 'idle_write_transaction_timeout',"
            " 'wait_timeout', 'character_set_database')",
        )
    }
    yield Finding(Level.OK, f"the server answers: {settings.get('version', 'MySQL')}")
    yield _sysdate(driver)
    if settings.get("innodb_flush_log_at_trx_commit", "1") == "1":
        yield Finding(Level.OK, "every commit is on disk before it is acknowledged")
    else:
        yield Finding(
            Level.WARNING,
            "innodb_flush_log_at_trx_commit is not 1: a crash of the server's machine forgets the last second of keys",
            "set it to 1 if an effect outside this database must not repeat",
        )
    if settings.get("log_bin") == "on" and settings.get("binlog_format") == "statement":
        yield Finding(
            Level.WARNING,
            "binlog_format is STATEMENT: a replica computes other lease ends and expiries than this server",
            "set binlog_format to ROW or MIXED",
        )
    # MySQL has the last one only.
    names = ("idle_transaction_timeout", "idle_write_transaction_timeout", "wait_timeout")
    limits = {name: float(settings[name]) for name in names if name in settings}
    yield _idle_transactions(next(iter(limits), names[-1]), filter(None, limits.values()))

    character_set = settings.get("character_set_database", "utf8mb4")
    if character_set != "utf8mb4":
        # Our own tables say theirs, and what differs there is found with the tables.
        yield Finding(
            Level.ADVICE,
            f"new tables of this database have the character set {character_set}: a handler that stores other text in "
            "them fails, or stores question marks",
            "ALTER DATABASE CHARACTER SET utf8mb4, and ALTER TABLE ... CONVERT TO CHARACTER SET utf8mb4",
        )


def _without_transactions(driver: DriverConnection, store: SqlStore) -> Iterator[Finding]:
    """Tables beside the keys that keep what a handler wrote although its transaction was rolled back."""
    if store.connections.dialect.name != "mysql":
        return
    rows = query(
        driver,
        "SELECT t.table_name, t.engine FROM information_schema.tables t"
        " JOIN information_schema.engines e ON e.engine = t.engine"
        " WHERE t.table_schema = DATABASE() AND t.table_type = 'BASE TABLE' AND e.transactions = 'NO'"
        " ORDER BY t.table_name",
    )
    # Those of the keys are reported with the tables.
    found = [f"{table} ({engine})" for table, engine in rows if not str(table).startswith(store.table)]
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        yield Finding(
            Level.WARNING,
            "tables without transactions, in which an effect stays although its message failed, and repeats: "
            f"{', '.join(found[:_SHOWN])}{more}",
            "if a handler changes one, type: ALTER TABLE ... ENGINE=InnoDB",
        )


def _idle_transactions(setting: str, limits_s: Iterable[float]) -> Finding:
    """Whether the server ends the transaction of a machine that is gone, in time: with it the keys are locked."""
    limit_s = min(limits_s, default=math.inf)
    if limit_s < _PAUSES_S:
        return Finding(
            Level.WARNING,
            f"an idle transaction is ended after {limit_s:g} s: a transactional handler that pauses for so long "
            "between two statements fails, each time",
            f"set {setting} to more than any handler's pause between two statements",
        )
    if limit_s < _PROBED_AFTER_S:
        return Finding(Level.OK, f"an idle transaction is ended after {limit_s:,.0f} s")
    how_long = "never" if limit_s == math.inf else f"only after {limit_s:,.0f} s"
    return Finding(
        Level.ADVICE,  # the server's default setting
        f"an idle transaction is ended {how_long}: messages of a transactional consumer whose machine has lost "
        "its power or network are held for hours",
        f"set {setting} to more than any handler's pause between two statements",
    )


def _sysdate(driver: DriverConnection) -> Finding:
    """Whether SYSDATE() reads the clock. A start option decides that and no variable shows it, so try it out."""
    before, _, after = query(driver, "SELECT SYSDATE(6), SLEEP(0.01), SYSDATE(6)")[0]
    if before != after:
        return Finding(Level.OK, "SYSDATE() is the clock when it is read")
    return Finding(
        Level.ERROR,
        "the server runs with sysdate-is-now: a claim that waited for a lock gets a lease that began before it",
        "start the server without --sysdate-is-now",
    )


def _postgresql(driver: DriverConnection) -> Iterator[Finding]:
    settings: dict[str, str] = dict(
        query(
            driver,
            "SELECT name, setting FROM pg_settings"
            " WHERE name IN ('server_version', 'fsync', 'full_page_writes', 'synchronous_commit',"
            " 'idle_in_transaction_session_timeout', 'server_encoding')",
        )
    )
    yield Finding(Level.OK, f"the server answers: PostgreSQL {settings.get('server_version', '')}".rstrip())
    unsafe = [name for name in ("fsync", "full_page_writes") if settings.get(name) == "off"]
    if unsafe:
        yield Finding(
            Level.WARNING,
            f"{' and '.join(unsafe)} off: a crash of the server's machine can destroy the database",
            "switch them on, except for tests",
        )
    if settings.get("synchronous_commit") == "off":
        yield Finding(
            Level.WARNING,
            "synchronous_commit is off: a crash of the server forgets the keys of its last moments",
            "set it to on for the role or database of the consumers",
        )
    elif not unsafe:
        yield Finding(Level.OK, "every commit is on disk before it is acknowledged")
    encoding = settings.get("server_encoding", "UTF8")
    if encoding != "UTF8":
        yield Finding(
            Level.ADVICE,
            f"the database has the encoding {encoding}: a text that it lacks can be stored neither by a handler nor in "
            "an outbox",
            "CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0, and move the tables",
        )
    setting = "idle_in_transaction_session_timeout"
    limit_ms = float(settings.get(setting, 0))
    yield _idle_transactions(setting, [limit_ms / 1000] if limit_ms else ())


def _sqlite(driver: DriverConnection) -> Iterator[Finding]:
    ((version,),) = query(driver, "SELECT sqlite_version()")
    yield Finding(Level.OK, f"the file can be read: SQLite {version}")
    ((mode,),) = query(driver, "PRAGMA journal_mode")
    if str(mode).lower() == "wal":
        yield Finding(Level.OK, "readers do not stop the writer (WAL)")
    else:
        # No promise depends on it.
        yield Finding(
            Level.OK,
            f"journal_mode is {mode}: every reader makes the one writer wait",
            "if several processes use the file, type: sqlite3 FILE 'PRAGMA journal_mode=WAL'",
        )


def _backlog(driver: DriverConnection, store: SqlStore) -> Finding:
    dialect = store.connections.dialect
    old = f"expires_at < {dialect.now_us} - {_DAY_US}"
    ((count,),) = query(driver, f"SELECT COUNT(*) FROM {dialect.located(store.table)} WHERE {old}")
    if not count:
        return Finding(Level.OK, "no key is a day past its expiry")
    return Finding(
        Level.WARNING,
        f"{count:,} keys are more than a day past their expiry: no worker deletes them",
        f"let a Worker run, or once an hour: idempotent gc {store.command_options}",
    )
