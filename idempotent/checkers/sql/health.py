"""sql_findings: checks whether an SQL server's tables, settings and keys let a checker keep its promise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from idempotent.admin import Finding, Level
from idempotent.checkers.sql.store import SqlStore
from idempotent.errors import StoreError, url_word
from idempotent.stores.sql.cursor import DriverConnection, query
from idempotent.stores.sql.faults import as_store_error, in_own_history

_OFF: Final = ("off", "0", "false", "none")
_DAY_US: Final = 86_400_000_000
# After as long as this, keep-alive probes find a machine that is gone, as Linux ships them.
_PROBED_AFTER_S: Final = 7200.0


def sql_findings(store: SqlStore) -> list[Finding]:
    """Check the tables, the server's settings, and for keys that gc should have deleted. Changes nothing.

    Raises:
        StoreError: the database did not answer.
    """
    tables = _tables(store)
    if any(finding.final for finding in tables):
        return tables
    dialect = store.connections.dialect

    def look(driver: DriverConnection) -> list[Finding]:
        settings = {"mysql": _mysql, "postgresql": _postgresql, "sqlite": _sqlite}[dialect.name]
        return [*settings(driver), _backlog(driver, dialect.quoted(store.table), dialect.now_us)]

    return [*tables, *_autocommit(store), *_refused(store), *store.connections.run(look)]


def _tables(store: SqlStore) -> list[Finding]:
    # Alembic is imported only for this.
    from idempotent.migrations import DriftKind, check

    try:
        drifts = check(store.engine, table=store.table)
    except SQLAlchemyError as error:
        raise as_store_error(error, store.engine, store.table) from error
    if not drifts:
        return [Finding(Level.OK, f"the table {store.table} is as this version needs it")]
    found = [
        Finding(Level.ERROR, str(drift), "docs/migrations.md says how each table has to look")
        for drift in drifts
    ]
    missing = [drift.table for drift in drifts if drift.kind is DriftKind.MISSING_TABLE]
    if missing:
        word = url_word(store.engine.url.render_as_string(hide_password=False))
        found.append(
            Finding(
                Level.ERROR,
                "the tables are not there, so no keys can be looked at",
                f"idempotent migrate upgrade --url {word} --table {store.table} "
                f"(or, {in_own_history(missing, store.table)})",
                final=True,
            )
        )
    return found


def _refused(store: SqlStore) -> Iterator[Finding]:
    try:
        store.ping()
    except StoreError as error:
        yield Finding(
            Level.ERROR,
            str(error),
            "connect to a server that takes writes, as a user who may change these tables",
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
            " 'wait_timeout')",
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


def _idle_transactions(setting: str, limits_s: Iterable[float]) -> Finding:
    """Whether the server ends the transaction of a machine that is gone, in time: with it the keys are locked."""
    limit_s = min(limits_s, default=math.inf)
    if limit_s < _PROBED_AFTER_S:
        return Finding(Level.OK, f"an idle transaction is ended after {limit_s:,.0f} s")
    how_long = "never" if limit_s == math.inf else f"only after {limit_s:,.0f} s"
    return Finding(
        Level.WARNING,
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
            " 'idle_in_transaction_session_timeout')",
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


def _backlog(driver: DriverConnection, table: str, now_us: str) -> Finding:
    ((count,),) = query(driver, f"SELECT COUNT(*) FROM {table} WHERE expires_at < {now_us} - {_DAY_US}")
    if not count:
        return Finding(Level.OK, "no key is a day past its expiry")
    return Finding(
        Level.WARNING,
        f"{count:,} keys are more than a day past their expiry: no worker deletes them",
        "let a Worker run, or `idempotent gc` once an hour",
    )
