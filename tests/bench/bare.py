"""The same statements by hand, with the bare driver: what a checker is measured against.

Long because every contender by hand stands beside the others.
"""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Final

import psycopg
import pymysql
from redis import Redis
from sqlalchemy import Column, Engine, LargeBinary, MetaData, SmallInteger, Table, insert, make_url
from sqlalchemy import create_engine as _create_engine
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.orm import Session
from sqlalchemy.types import BigInteger

from idempotent import Message
from idempotent.checkers.durations import Durations
from idempotent.checkers.redis.layout import Script, claim_body
from idempotent.checkers.sql.statements import Statements
from idempotent.claims import ClaimRequest, KeyStatus, new_owner
from idempotent.keys import KeySpace
from idempotent.schema import DEFAULT_TABLE
from idempotent.stores.redis.client import open_client
from idempotent.stores.redis.scripts import RedisStore
from idempotent.stores.sql.cursor import DriverConnection, execute, insert_id, query
from idempotent.stores.sql.dialects import Conflict, dialect_for
from tests.bench.checkers import THREADS, effects
from tests.bench.contest import SUBJECT, Contender, Tick, Work, in_batches, one_by_one
from tests.bench.figures import What

WHO: Final = "by hand"
GROUP: Final = f"{WHO}, Session, one commit"
SAVEPOINTS: Final = f"{WHO}, Session, savepoints"
TOGETHER: Final = f"{WHO}, Session, one INSERT"
SAME: Final = f"{WHO}, the checker's statements"
SAME_IN_SESSION: Final = f"{WHO}, Session, the checker's statement"
RETENTION_S: Final = 14 * 86400
LEASE_MS: Final = 30_000
LOCK_S: Final = 5.0
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
        Contender("Redis", SAME, lambda: _same_scripts(url, 500), batch=500, whats=(What.FRESH,)),
    ]


@contextmanager
def _redis_one(url: str) -> Iterator[Work]:
    prefix = secrets.token_hex(4)
    with closing(Redis.from_url(url)) as client:

        def process(message: Message) -> None:
            name = f"{prefix}:{message.id!s}"
            if client.set(name, "running", nx=True, px=LEASE_MS):
                client.set(name, "done", ex=RETENTION_S)

        yield one_by_one(process)


@contextmanager
def _redis_many(url: str, batch: int) -> Iterator[Work]:
    prefix = secrets.token_hex(4)
    with closing(Redis.from_url(url)) as client:
        claim = client.register_script(
            "local got = {} for i = 1, #KEYS do"
            " got[i] = redis.call('SET', KEYS[i], ARGV[1], 'NX', 'PX', ARGV[2]) and 1 or 0 end return got"
        )
        # Whoever stalled past his lease must not complete another's claim.
        complete = client.register_script(
            "local done = 0 for i = 1, #KEYS do if redis.call('GET', KEYS[i]) == ARGV[1] then"
            " redis.call('SET', KEYS[i], 'done', 'EX', ARGV[2]) done = done + 1 end end return done"
        )

        def process(messages: Sequence[Message]) -> None:
            owner = secrets.token_bytes(16)
            names = [f"{prefix}:{message.id!s}" for message in messages]
            got = claim(keys=names, args=[owner, LEASE_MS])
            if won := [name for name, one in zip(names, got, strict=True) if one]:
                complete(keys=won, args=[owner, RETENTION_S])

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
            Contender(
                where, f"{WHO}, Session", lambda: _session(engine), threads=threads, after=engine.dispose
            )
            for threads in THREADS
        ),
        *(_limits(where, engine) if engine.dialect.name != "sqlite" else ()),  # of which nothing is demanded
    ]


def _limits(where: str, engine: Engine) -> Iterator[Contender]:
    """What the checkers could reach at the most."""

    def of(who: str, opened: Callable[[], Any], batch: int) -> Contender:
        return Contender(where, who, opened, batch, whats=(What.FRESH,), after=engine.dispose)

    for batch in (1, 500):
        yield of(SAME, partial(_same_statements, engine, batch), batch)
    yield of(SAME_IN_SESSION, partial(_session_with_the_same_statement, engine), 1)
    for who, book in ((GROUP, _each), (SAVEPOINTS, _each_in_a_savepoint), (TOGETHER, _together)):
        yield of(who, partial(_group, engine, book), 200)


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
    idle: deque[Any] = deque()

    def work(messages: Sequence[Message], tick: Tick) -> None:
        connection = idle.pop() if idle else connect()
        for message in messages:
            key = _hash(prefix, message)
            with closing(connection.cursor()) as cursor:
                cursor.execute(claim, (key, time.time_ns() // 1000))
                won = cursor.rowcount == 1
            if won:
                with closing(connection.cursor()) as cursor:
                    cursor.execute(complete, (time.time_ns() // 1000, key))
            tick()
        idle.append(connection)

    try:
        yield work
    finally:
        for connection in idle:
            connection.close()


@contextmanager
def _session(engine: Engine) -> Iterator[Work]:
    prefix = secrets.token_hex(4)
    # Without that SQLAlchemy keeps the count of an INSERT to itself.
    claim = _insert_if_free(engine).execution_options(preserve_rowcount=True)

    def process(message: Message) -> None:
        with Session(engine) as session, session.begin():
            key = {"k": _hash(prefix, message), "status": 2, "at": time.time_ns() // 1000}
            if session.execute(claim, key).rowcount == 1:  # type: ignore[attr-defined]
                session.execute(insert(effects), {"message": message.id, "amount": 1})

    yield one_by_one(process)


@contextmanager
def _session_with_the_same_statement(engine: Engine) -> Iterator[Work]:
    """The INSERT of `TransactionalSqlChecker`, with its limit for locks, and the business row."""
    space = KeySpace(SUBJECT, secrets.token_hex(4))
    dialect = dialect_for(engine.dialect)
    claim = Statements(dialect, DEFAULT_TABLE, Durations(None, RETENTION_S, None)).insert(
        1, KeyStatus.DONE, LOCK_S, in_transaction=True
    )
    run = insert_id if dialect.conflict is Conflict.RETURNS_ALL else query

    def process(message: Message) -> None:
        key = space.key(str(message.id))
        with Session(engine) as session, session.begin():
            driver = DriverConnection(session.connection().connection.dbapi_connection)
            if not run(driver, claim, (key.hash, key.text, new_owner(), None)):
                raise ValueError("this message was to be a fresh one")
            session.execute(insert(effects), {"message": message.id, "amount": 1})

    yield one_by_one(process)


@contextmanager
def _group(engine: Engine, book: Callable[[Session, Sequence[Message]], None]) -> Iterator[Work]:
    """All keys at once, then the effects, and one commit: what a group comes to at the least."""
    prefix = secrets.token_hex(4)
    claim = _insert_if_free(engine).execution_options(preserve_rowcount=True)

    def process(messages: Sequence[Message]) -> None:
        at = time.time_ns() // 1000
        with Session(engine) as session, session.begin():
            rows = [{"k": _hash(prefix, message), "status": 2, "at": at} for message in messages]
            if session.execute(claim, rows).rowcount < len(rows):  # type: ignore[attr-defined]
                raise ValueError("these messages were to be fresh ones")
            book(session, messages)

    yield in_batches(process, 200)


def _each(session: Session, messages: Sequence[Message]) -> None:
    for message in messages:
        session.execute(insert(effects), {"message": message.id, "amount": 1})


def _each_in_a_savepoint(session: Session, messages: Sequence[Message]) -> None:
    for message in messages:
        with session.begin_nested():
            session.execute(insert(effects), {"message": message.id, "amount": 1})


def _together(session: Session, messages: Sequence[Message]) -> None:
    session.execute(insert(effects), [{"message": message.id, "amount": 1} for message in messages])


@contextmanager
def _same_scripts(url: str, batch: int) -> Iterator[Work]:
    """The scripts of `RedisChecker` with their keys and arguments, and no result for a message."""
    store = RedisStore(open_client(url), f"{secrets.token_hex(4)}:")
    durations = Durations(LEASE_MS / 1000, RETENTION_S, None)
    claim, complete = Script("claim", durations), Script("complete", durations)
    space = KeySpace(SUBJECT, "bench")

    def process(messages: Sequence[Message]) -> None:
        owner = new_owner()
        requests = [ClaimRequest(space.key(str(message.id)), owner) for message in messages]
        names = [store.names.name(request.key.hash) for request in requests]
        list(store.run_many(claim, names, map(claim_body, requests)))
        if not all(store.run_many(complete, names, [owner] * len(names))):
            raise ValueError("these messages were to be fresh ones")

    yield in_batches(process, batch)
    store.close()


@contextmanager
def _same_statements(engine: Engine, batch: int) -> Iterator[Work]:
    """The statements of `SqlChecker` on a connection in autocommit: what they take by themselves."""
    space = KeySpace(SUBJECT, secrets.token_hex(4))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        driver = DriverConnection(connection.connection.dbapi_connection)
        durations = Durations(LEASE_MS / 1000, RETENTION_S, None)
        statements = Statements(dialect_for(engine.dialect), DEFAULT_TABLE, durations)
        insert_one = statements.insert(1, KeyStatus.IN_PROGRESS, None, in_transaction=False)
        run = insert_id if dialect_for(engine.dialect).conflict is Conflict.RETURNS_ALL else query

        def one(messages: Sequence[Message], tick: Tick) -> None:
            for message in messages:
                key, owner = space.key(str(message.id)), new_owner()
                claim = (key.hash, key.text, owner, None)
                if (
                    not run(driver, insert_one, claim)
                    or execute(driver, statements.complete, (key.hash, owner)) != 1
                ):
                    raise ValueError("this message was to be a fresh one")
                tick()

        def many(messages: Sequence[Message]) -> None:
            owner = new_owner()
            keys = sorted((space.key(str(message.id)) for message in messages), key=lambda key: key.hash)
            claims = [value for key in keys for value in (key.hash, key.text, owner, None)]
            insert = statements.insert(len(keys), KeyStatus.IN_PROGRESS, None, in_transaction=False)
            run(driver, insert, claims)
            hashes = [key.hash for key in keys]
            complete = statements.complete_group(len(keys), 1, 0)
            if execute(driver, complete, (*hashes, owner), many=True) != len(keys):
                raise ValueError("these messages were to be fresh ones")

        yield one if batch == 1 else in_batches(many, batch)


def _insert_if_free(engine: Engine) -> Any:
    match engine.dialect.name:
        case "mysql":
            return insert(keys).prefix_with("IGNORE")
        case "postgresql":
            return postgresql.insert(keys).on_conflict_do_nothing()
        case _:
            return sqlite.insert(keys).on_conflict_do_nothing()


def _hash(prefix: str, message: Message) -> bytes:
    return hashlib.blake2b(f"{prefix}:{message.id!s}".encode(), digest_size=20).digest()
