"""Tables full of keys, made by the server itself: through a checker it would take hours."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from idempotent.migrations import upgrade
from tests.bench.growth.results import Layout

TABLES: Final = {Layout.BY_HASH: "by_hash", Layout.BY_ID: "by_id"}
_DAY_US: Final = 86_400_000_000
# Between what the library gives a fresh key, 14 days, and what was loaded: fresh ones can be told and removed.
_LOADED_DAYS: Final = 13
_CHUNK: Final = 100_000

_COLUMNS: Final = "fence, key_hash, k, status, owner, lease_until, update_at, expires_at"
# A hash comes from anywhere: keys are loaded in no order, as they would have come.
_LOAD: Final = {
    "mysql": (
        "INSERT INTO {table} (" + _COLUMNS + ") SELECT {now} + seq, UNHEX(SHA1(CONCAT('{what}-', seq))),"
        " CONCAT('growth:stored:order-', seq), 4, UNHEX(MD5(seq)), NULL, {now} + seq, {expires}"
        " FROM seq_{first}_to_{last}"
    ),
    "postgresql": (
        "INSERT INTO {table} (" + _COLUMNS + ") SELECT {now} + seq,"
        " substring(sha256(('{what}-' || seq)::bytea) FROM 1 FOR 20), 'growth:stored:order-' || seq, 4,"
        " decode(md5(seq::text), 'hex'), NULL, {now} + seq, {expires}"
        " FROM generate_series({first}::bigint, {last}) AS seq"
    ),
}
_NOW: Final = {
    "mysql": "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)",
    "postgresql": "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint",
}
# The library's columns, word by word, behind a number.
_BY_ID: Final = {
    "mysql": (
        "CREATE TABLE by_id (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, key_hash BINARY(20) NOT NULL,"
        " k VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, status SMALLINT NOT NULL,"
        " owner BINARY(16) NOT NULL, fence BIGINT NOT NULL, lease_until BIGINT, fingerprint BINARY(20),"
        " result LONGBLOB, update_at BIGINT NOT NULL, expires_at BIGINT NOT NULL,"
        " UNIQUE KEY uq_by_id (key_hash), KEY ix_by_id_expires_at (expires_at)) ENGINE=InnoDB CHARSET=utf8mb4"
    ),
    "postgresql": (
        "CREATE TABLE by_id (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key_hash BYTEA NOT NULL UNIQUE,"
        " k VARCHAR(255) NOT NULL, status SMALLINT NOT NULL, owner BYTEA NOT NULL, fence BIGINT NOT NULL,"
        " lease_until BIGINT, fingerprint BYTEA, result BYTEA, update_at BIGINT NOT NULL, expires_at BIGINT NOT NULL)"
        " WITH (fillfactor = 70)"
    ),
}
_EXTRA: Final = {"mysql": (), "postgresql": ("CREATE INDEX ix_by_id_expires_at ON by_id (expires_at)",)}
_SIZE: Final = {
    "mysql": (
        "SELECT SUM(stat_value) * @@innodb_page_size FROM mysql.innodb_index_stats"
        " WHERE database_name = DATABASE() AND table_name = '{table}' AND stat_name = 'size'"
    ),
    "postgresql": "SELECT pg_total_relation_size('{table}')",
}


class Tables:
    """The tables of both layouts in one database.

    Args:
        engine: of an empty database.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._dialect = engine.dialect.name
        self.stored = 0
        upgrade(engine, table=TABLES[Layout.BY_HASH])
        self._run(_BY_ID[self._dialect], *_EXTRA[self._dialect])

    def fill(self, stored: int, on_loaded: Callable[[int], object]) -> None:
        """Load both until there are so many keys."""
        while self.stored < stored:
            last = min(self.stored + _CHUNK, stored)
            spread = f"{{now}} + {_DAY_US} + MOD(seq * 104729001, {(_LOADED_DAYS - 1) * _DAY_US})"
            for table in TABLES.values():
                self._load(table, "stored", self.stored + 1, last, spread)
            self.stored = last
            on_loaded(last)
        self._settle()

    def add_expired(self, count: int) -> None:
        """Keys in the library's table that are garbage already."""
        for first in range(1, count + 1, _CHUNK):
            last = min(first + _CHUNK - 1, count)
            self._load(TABLES[Layout.BY_HASH], "expired", first, last, f"{{now}} - {_DAY_US} + seq")
        self._settle()

    def forget_fresh(self) -> None:
        """Remove what was claimed since: the next measurement begins with as many keys as this one did."""
        for table in TABLES.values():
            limit = f"{_NOW[self._dialect]} + {(_LOADED_DAYS + 1) * _DAY_US - _DAY_US // 2}"
            self._run(f"DELETE FROM {table} WHERE expires_at > {limit}")

    def bytes_per_key(self, layout: Layout) -> float:
        """What a key takes on the disk, indexes and free room in pages included."""
        with self._engine.connect() as connection:
            size = connection.execute(text(_SIZE[self._dialect].format(table=TABLES[layout]))).scalar_one()
        return round(float(size) / self.stored, 1)

    def _load(self, table: str, what: str, first: int, last: int, expires: str) -> None:
        now = _NOW[self._dialect]
        statement = _LOAD[self._dialect].format(
            table=table, what=what, now=now, expires=expires.format(now=now), first=first, last=last
        )
        self._run(statement)

    def _settle(self) -> None:
        """Statistics, and what a server does after a load anyway, before the clock runs."""
        for table in TABLES.values():
            analyze = "ANALYZE TABLE" if self._dialect == "mysql" else "VACUUM ANALYZE"
            with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.execute(text(f"{analyze} {table}"))
        if self._dialect == "postgresql":
            with suppress(DBAPIError):
                self._run("CHECKPOINT")

    def _run(self, *statements: str) -> None:
        with self._engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
