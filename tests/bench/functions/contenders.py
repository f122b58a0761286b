"""What `@idempotent` costs against a consumer, and the HTTP middleware against the same statements by hand."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Column, LargeBinary, MetaData, SmallInteger, Table, insert, update
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.types import BigInteger

from idempotent import Message, Registry, idempotent
from idempotent.adapters.asgi import IdempotencyKeyMiddleware
from idempotent.adapters.asgi import session as session_of_request
from idempotent.checkers import TransactionalSqlChecker
from tests.bench.checkers import CheckerFactory, effects, engine_at, raise_error
from tests.bench.contest import SUBJECT, Contender, Tick, Work, one_by_one
from tests.bench.figures import What

FUNCTION: Final = "@idempotent"
CONSUMER: Final = "consumer, with results"
MIDDLEWARE: Final = "IdempotencyKeyMiddleware"
BY_HAND: Final = "by hand, a request"
_ANSWER: Final = {"charged": 100}

# What somebody writes for a key, the request that it stands for, and its answer.
answers = Table(
    "bench_answers",
    MetaData(),
    Column("k", LargeBinary(20).with_variant(mysql.VARBINARY(20), "mysql"), primary_key=True),
    Column("request", LargeBinary(32).with_variant(mysql.VARBINARY(32), "mysql"), nullable=False),
    Column("status", SmallInteger),
    Column("answer", LargeBinary),
    Column("at", BigInteger, nullable=False),
)


def functions(where: str, checker: CheckerFactory) -> list[Contender]:
    """A function and a consumer that do the same and store the same result."""

    @contextmanager
    def function() -> Iterator[Work]:
        made = checker()

        @idempotent(made, group=secrets.token_hex(4), key="order", name="charge")
        def charge(order: object) -> dict[str, int]:
            return _ANSWER

        try:
            yield one_by_one(lambda message: charge(message.id))
        finally:
            made.close()

    @contextmanager
    def consumer() -> Iterator[Work]:
        made = checker()

        @Registry().consumer(SUBJECT, checker=made, group=secrets.token_hex(4), store_result=True)
        def charge(_: Message) -> dict[str, int]:
            return _ANSWER

        try:
            yield one_by_one(lambda message: raise_error(charge.process(Message(SUBJECT, id=message.id))))
        finally:
            made.close()

    return [Contender(where, FUNCTION, function), Contender(where, CONSUMER, consumer)]


def requests(where: str, url: str) -> list[Contender]:
    """A POST whose effect, key and answer commit together: through the middleware, and by hand."""
    engine_at(url).dispose()
    return [
        Contender(where, MIDDLEWARE, lambda: _through_the_middleware(url), whats=(What.FRESH,)),
        Contender(where, BY_HAND, lambda: _by_hand(url), whats=(What.FRESH,)),
    ]


def _async_engine(url: str) -> AsyncEngine:
    # asyncmy has no `ssl_disabled`: it does not encrypt unless it is told to.
    return create_async_engine(url.replace("+pymysql", "+asyncmy").replace("?ssl_disabled=true", ""))


@contextmanager
def _through_the_middleware(url: str) -> Iterator[Work]:
    engine = _async_engine(url)
    checker = TransactionalSqlChecker(engine)

    async def app(_: Any, __: Any, send: Any) -> None:
        given = session_of_request()
        session = await anext(given)
        await session.execute(insert(effects), {"message": "charge", "amount": 1})
        await given.aclose()
        await _answer(send)

    protected = IdempotencyKeyMiddleware(
        app, checker=checker, scope=lambda _: "user", group=secrets.token_hex(4)
    )
    with asyncio.Runner() as runner:
        try:
            yield _requesting(runner, protected)
        finally:
            checker.close()
            runner.run(engine.dispose())


@contextmanager
def _by_hand(url: str) -> Iterator[Work]:
    engine = _async_engine(url)
    prefix = secrets.token_hex(4)
    claim: Any = insert(answers).prefix_with("IGNORE")
    if engine.dialect.name == "postgresql":
        claim = postgresql.insert(answers).on_conflict_do_nothing()
    claim = claim.execution_options(preserve_rowcount=True)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        (name,) = [value for header, value in scope["headers"] if header == b"idempotency-key"]
        body = (await receive())["body"]
        key = hashlib.blake2b(prefix.encode() + b"user" + name, digest_size=20).digest()
        request = hashlib.sha256(scope["path"].encode() + body).digest()
        async with AsyncSession(engine) as session, session.begin():
            row = {"k": key, "request": request, "at": time.time_ns() // 1000}
            if (await session.execute(claim, row)).rowcount != 1:  # type: ignore[attr-defined]
                raise ValueError("this request was to be a fresh one")
            await session.execute(insert(effects), {"message": "charge", "amount": 1})
            stored = {"status": 200, "answer": json.dumps(_ANSWER).encode()}
            await session.execute(update(answers).where(answers.c.k == key).values(**stored))
        await _answer(send)

    with asyncio.Runner() as runner:

        async def prepare() -> None:
            async with engine.begin() as connection:
                await connection.run_sync(answers.metadata.create_all)

        runner.run(prepare())
        try:
            yield _requesting(runner, app)
        finally:
            runner.run(engine.dispose())


async def _answer(send: Any) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(_ANSWER).encode()})


def _requesting(runner: asyncio.Runner, app: Any) -> Work:
    async def request(messages: Sequence[Message], tick: Tick) -> None:
        for message in messages:
            sent: list[dict[str, Any]] = []
            bodies = iter([{"type": "http.request", "body": b'{"cents": 100}', "more_body": False}])

            async def receive() -> dict[str, Any]:
                event = next(bodies, None)  # noqa: B023
                if event is None:
                    await asyncio.sleep(3600)  # the client stays
                assert event is not None
                return event

            async def send(event: dict[str, Any]) -> None:
                sent.append(event)  # noqa: B023

            scope = {
                "type": "http",
                "method": "POST",
                "path": "/charges",
                "query_string": b"",
                "headers": [(b"idempotency-key", f'"{message.id!s}"'.encode())],
            }
            await app(scope, receive, send)
            if sent[0]["status"] != 200:
                raise ValueError(f"answered {sent}")
            tick()

    return lambda messages, tick: runner.run(request(messages, tick))
