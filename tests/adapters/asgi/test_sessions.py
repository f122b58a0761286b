"""The endpoint's session: it commits with the key and the answer, or by itself in a request without a key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException
from fastapi.responses import JSONResponse, StreamingResponse
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from idempotent.adapters.asgi import IdempotencyKeyMiddleware, session
from idempotent.checkers import MemoryChecker
from idempotent.errors import ConfigurationError, StoreError
from tests.adapters.asgi.serving import USER, served, until, user_of
from tests.support.stores import Store, open_store

Session = Annotated[AsyncSession, Depends(session)]


@pytest.fixture(params=["postgres", "mysql"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with contextmanager(open_store)(request.param, request, reuse=True) as store:
        yield store


def api_of(store: Store, seen: list[Any]) -> FastAPI:
    api, effects = FastAPI(), store.effects

    async def book(session: AsyncSession, order: str) -> None:
        await session.execute(effects.insert().values(id=order))

    @api.post("/books/{order}")
    async def books(order: str, session: Session, tasks: BackgroundTasks) -> str:
        await book(session, order)
        seen.append(store.booked())  # nobody else sees it yet
        tasks.add_task(lambda: seen.append(store.booked()))
        return order

    @api.get("/books/{order}")
    async def reads(order: str, session: Session) -> int:
        count = sa.select(sa.func.count()).select_from(effects).where(effects.c.id == order)
        return int((await session.execute(count)).scalar_one())

    @api.post("/answers/{order}/{status}")
    async def answers(order: str, status: int, session: Session) -> JSONResponse:
        await book(session, order)
        return JSONResponse(order, status)

    @api.post("/raises/{order}/{status}")
    async def raises(order: str, status: int, session: Session) -> None:
        await book(session, order)
        raise HTTPException(status) if status else ValueError

    @api.post("/streams/{order}")
    async def streams(order: str, session: Session) -> StreamingResponse:
        async def parts() -> Any:
            yield "booked "
            await book(session, order)
            yield order

        return StreamingResponse(parts())

    @api.post("/breaks/{order}")
    async def breaks(order: str, session: Session) -> StreamingResponse:
        async def parts() -> Any:
            yield "booked "
            await book(session, order)
            raise ValueError

        return StreamingResponse(parts())

    @api.post("/commits/{order}")
    async def commits(order: str, session: Session) -> str:
        await book(session, order)
        await session.commit()
        return order

    return api


@contextmanager
def opened(checker: Any, app: Any) -> Iterator[httpx.Client]:
    protected = IdempotencyKeyMiddleware(app, checker=checker, scope=user_of, group="tests")
    with served(protected) as address, httpx.Client(base_url=address, headers=USER, timeout=60) as http:
        yield http


@pytest.mark.parametrize("key", ["k", None])
def test_what_an_endpoint_writes_commits_with_its_answer(store: Store, key: str | None) -> None:
    seen: list[Any] = []
    keyed = {"Idempotency-Key": key} if key else {}
    with opened(store.transactional(store.async_engine()), api_of(store, seen)) as http:

        def post(path: str) -> httpx.Response:
            headers = {**keyed, "Connection": "close"}
            if key:
                headers["Idempotency-Key"] = path.replace("/", "-")
            return http.post(path, headers=headers)

        repeats = 2 if key else 1
        for _ in range(repeats):
            assert post("/books/a").json() == "a"
            until(lambda: len(seen) == 2)  # with its background task
            assert post("/streams/b").text == "booked b"
            assert post("/answers/c/404").status_code == 404
        assert store.booked() == {"a": 1, "b": 1, "c": 1}
        assert seen[0] == {}  # in the endpoint
        assert seen[1] == {"a": 1}  # in its background task, after the COMMIT

        # A copy runs again, because nothing is left of the first.
        for _ in range(2):
            assert post("/answers/d/500").status_code == 500
            assert post("/answers/e/401").status_code == 401
            assert post("/raises/f/409").status_code == 409
            assert post("/raises/g/0").status_code == 500
            assert post("/breaks/h").status_code == 500  # not the beginning of a stream
            assert post("/commits/i").status_code == 500
        assert store.booked() == {"a": 1, "b": 1, "c": 1}
        assert [http.get(f"/books/{order}").json() for order in "abd"] == [1, 1, 0]


def test_without_a_transaction_the_session_says_so() -> None:
    errors: list[Exception] = []
    api = FastAPI()

    @api.post("/")
    async def books(session: Session) -> None: ...

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        try:
            await api(scope, receive, send)
        except Exception as error:
            errors.append(error)
            raise

    with opened(MemoryChecker(), noting) as http:
        assert http.post("/", headers={"Idempotency-Key": "k", "Connection": "close"}).status_code == 500
        assert http.post("/", headers={"Connection": "close"}).status_code == 500
    with served(noting) as address:
        assert httpx.post(address).status_code == 500
    assert [str(error).split(";")[0] for error in errors] == [
        "session() needs a checker with transactions, and MemoryChecker has none"
    ] * 2 + ["session() is for requests that pass through an IdempotencyKeyMiddleware"]


REQUEST = {"type": "http", "method": "POST", "path": "/", "headers": []}


async def say(send: Any, status: int = 204) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body"})


class Asked:
    """An application, asked in the test's own loop by requests without a key.

    Attributes:
        statuses: of the answers, in their order.
    """

    def __init__(self, store: Store, app: Any, engine: AsyncEngine | None = None) -> None:
        checker = store.transactional(store.async_engine() if engine is None else engine)
        self._protected = IdempotencyKeyMiddleware(app, checker=checker, scope=user_of, group="tests")
        self.statuses: list[int] = []

    async def ask(self) -> None:
        async def take(event: Any) -> None:
            if "status" in event:
                self.statuses.append(event["status"])

        await self._protected(dict(REQUEST), asyncio.Event().wait, take)


def test_parts_of_a_request_that_run_at_once_share_its_transaction(store: Store) -> None:
    async def app(_: Any, __: Any, send: Any) -> None:
        one, other = await asyncio.gather(anext(session()), anext(session()))
        assert one is other
        await one.execute(store.effects.insert().values(id="a"))
        await say(send)

    asked = Asked(store, app)
    asyncio.run(asked.ask())
    assert asked.statuses == [204]
    assert store.booked() == {"a": 1}


def test_a_request_that_is_cancelled_while_its_session_opens_gives_its_connection_back(store: Store) -> None:
    async def app(_: Any, __: Any, send: Any) -> None:
        await anext(session())
        await say(send)

    async def ask() -> None:
        engine = create_async_engine(store.async_engine().url, pool_size=1, max_overflow=0, pool_timeout=0.5)
        asked = Asked(store, app, engine)
        for turns in range(1, 9):
            task = asyncio.create_task(asked.ask())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        asked.statuses.clear()
        await asked.ask()
        assert asked.statuses == [204]
        await engine.dispose()

    asyncio.run(ask())


@pytest.mark.parametrize("again", [False, True])
def test_an_endpoint_whose_session_does_not_open_answers_itself_or_tries_again(
    store: Store, again: bool
) -> None:
    async def ask() -> None:
        engine = create_async_engine(store.async_engine().url, pool_size=1, max_overflow=0, pool_timeout=0.2)
        has, ends = asyncio.Event(), asyncio.Event()

        async def app(_: Any, __: Any, send: Any) -> None:
            try:
                await anext(session())
            except StoreError:
                if again:
                    ends.set()
                    await first
                    await anext(session())
                await say(send, 200 if again else 503)
            else:
                has.set()
                await ends.wait()
                await say(send)

        asked = Asked(store, app, engine)
        first = asyncio.create_task(asked.ask())
        await has.wait()
        await asked.ask()
        ends.set()
        await first
        assert asked.statuses == ([204, 200] if again else [503, 204])
        await engine.dispose()

    asyncio.run(ask())


def test_after_its_answer_a_request_without_a_key_opens_no_transaction(store: Store) -> None:
    errors: list[str] = []

    async def app(_: Any, __: Any, send: Any) -> None:
        await say(send)
        try:
            await anext(session())
        except ConfigurationError as error:
            errors.append(str(error).partition(":")[0])

    asyncio.run(Asked(store, app).ask())
    assert errors == ["the request has no key, and its transaction has ended with its answer"]


def test_a_cancellation_while_an_endpoint_gets_its_session_reaches_it(store: Store) -> None:
    seen: list[str] = []

    async def app(_: Any, __: Any, send: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)  # such as that of a time limit
        try:
            await anext(session())
        except asyncio.CancelledError:
            seen.append("cancelled")
            task.uncancel()
        seen.append(type(await anext(session())).__name__)
        await say(send)

    asked = Asked(store, app)
    asyncio.run(asked.ask())
    assert seen == ["cancelled", "AsyncSession"]
    assert asked.statuses == [204]
