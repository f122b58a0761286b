"""The same statements by hand, with the bare driver: what a checker is measured against."""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

import psycopg
import pymysql
from redis import Redis
from sqlalchemy import Column, Engine, LargeBinary, MetaData, SmallInteger, Table, insert, make_url
from sqlalchemy import create_engine as _create_engine
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.orm import Session
from sqlalchemy.types import BigInteger

from tests.bench.checkers import THREADS, effects
from tests.bench.contest import Contender, Tick, Work, in_batches, one_by_one

WHO: Final = "by hand"
RETENTION_S: Final = 14 * 86400
LEASE_MS: Final = 30_000
Connect = Callable[[], Any]

# What somebody writes who needs no leases, fences, attempts or texts for people.
keys = Table(
    "bench_keys",
    MetaData(),
    Column("k", LargeBinary(20).with_variant(mysql.VARBINARY(20), "mysql"), primary_key=True),
    Column("status", SmallInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
)


def handler() -> list[Contender]:
    """Nothing but the handler."""

    @contextmanager
    def opened() -> Iterator[Work]:
        yield one_by_one(lambda _: None)

    return [Contender("Memory", WHO, opened)]


def redis(url: str) -> list[Contender]:
    """SET NX and SET; and in batches one Lua script for each."""
    return [
        *(Contender("Redis", WHO, lambda: _redis_one(url), threads=threads) for threads in THREADS),
        Contender("Redis", f"{WHO}, Lua", lambda: _redis_many(url, 500), batch=500),
    ]


@contextmanager
def _redis_one(url: str) -> Iterator[Work]:
    prefix = secrets.token_hex(4)
    with closing(Redis.from_url(url)) as client:

        def process(message_id: str) -> None:
            name = f"{prefix}:{message_id}"
            if client.set(name, "running", nx=True, px=LEASE_MS):
                client.set(name, "done", ex=RETENTION_S)

        yield one_by_one(process)


@contextmanager
def _redis_many(url: str, batch: int) -> Iterator[Work]:
    prefix = secrets.token_hex(4)
    with closing(Redis.from_url(url)) as client:
        claim = client.register_script(
            "local got = {} for i = 1, #KEYS do"
            " got[i] = redis.call('SET', KEYS[i], 'running', 'NX', 'PX', ARGV[1]) and 1 or 0 end return got"
        )
        complete = client.register_script(
            "for i = 1, #KEYS do redis.call('SET', KEYS[i], 'done', 'EX', ARGV[1]) end return #KEYS"
        )

        def process(ids: Sequence[str]) -> None:
            names = [f"{prefix}:{message_id}" for message_id in ids]
            got = claim(keys=names, args=[LEASE_MS])
            if won := [name for name, one in zip(names, got, strict=True) if one]:
                complete(keys=won, args=[RETENTION_S])

        yield in_batches(process, batch)


def sql(where: str, url: str) -> list[Contender]:
    """INSERT and UPDATE on the driver; BEGIN, INSERT, business INSERT and COMMIT in a Session."""
    engine = _create_engine(url, pool_size=8)
    keys.metadata.create_all(engine)
    connect, claim, complete = _statements(url)
    return [
        *(
            Contender(where, WHO, lambda: _driver(connect, claim, complete), threads=threads)
            for threads in THREADS
        ),
        *(
            Contender(where, f"{WHO}, Session", lambda: _session(engine), threads=threads)
            for threads in THREADS
        ),
    ]


def _statements(url: str) -> tuple[Connect, str, str]:
    """How to connect, claim and complete with the driver alone."""
    parts = make_url(url)
    login: dict[str, Any] = {"host": parts.host, "port": parts.port, "user": parts.username}
    match parts.get_backend_name():
        case "mysql":
            login |= {"password": parts.password, "database": parts.database, "autocommit": True}
            insert_key = "INSERT IGNORE INTO bench_keys (k, status, at) VALUES (%s, 1, %s)"
            return lambda: pymysql.connect(**login), insert_key, _update("%s")
        case "postgresql":
            login |= {"password": parts.password, "dbname": parts.database, "autocommit": True}
            insert_key = "INSERT INTO bench_keys (k, status, at) VALUES (%s, 1, %s) ON CONFLICT DO NOTHING"
            return lambda: psycopg.connect(**login), insert_key, _update("%s")
        case _:
            insert_key = "INSERT INTO bench_keys (k, status, at) VALUES (?, 1, ?) ON CONFLICT DO NOTHING"
            path = parts.database or ""
            return lambda: _sqlite(path), insert_key, _update("?")


def _update(marker: str) -> str:
    return f"UPDATE bench_keys SET status = 2, at = {marker} WHERE k = {marker} AND status = 1"


def _sqlite(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)


@contextmanager
def _driver(connect: Connect, claim: str, complete: str) -> Iterator[Work]:
    prefix = secrets.token_hex(4)
    own = threading.local()
    opened: list[Any] = []

    def work(ids: Sequence[str], tick: Tick) -> None:
        if not hasattr(own, "connection"):
            own.connection = connect()
            opened.append(own.connection)
        connection = own.connection
        for message_id in ids:
            key = _hash(prefix, message_id)
            with closing(connection.cursor()) as cursor:
                cursor.execute(claim, (key, time.time_ns() // 1000))
                won = cursor.rowcount == 1
            if won:
                with closing(connection.cursor()) as cursor:
                    cursor.execute(complete, (time.time_ns() // 1000, key))
            tick()

    try:
        yield work
    finally:
        for connection in opened:
            connection.close()


@contextmanager
def _session(engine: Engine) -> Iterator[Work]:
    prefix = secrets.token_hex(4)
    claim = _insert_if_free(engine)

    def process(message_id: str) -> None:
        with Session(engine) as session, session.begin():
            key = {"k": _hash(prefix, message_id), "status": 2, "at": time.time_ns() // 1000}
            if session.execute(claim, key).rowcount == 1:  # type: ignore[attr-defined]
                session.execute(insert(effects), {"message": message_id, "amount": 1})

    yield one_by_one(process)


def _insert_if_free(engine: Engine) -> Any:
    match engine.dialect.name:
        case "mysql":
            return insert(keys).prefix_with("IGNORE")
        case "postgresql":
            return postgresql.insert(keys).on_conflict_do_nothing()
        case _:
            return sqlite.insert(keys).on_conflict_do_nothing()


def _hash(prefix: str, message_id: str) -> bytes:
    return hashlib.blake2b(f"{prefix}:{message_id}".encode(), digest_size=20).digest()
