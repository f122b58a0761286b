"""Web servers in threads of the test, and an application that does what a test tells it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import uvicorn
from hypercorn.asyncio import serve as hypercorn_serve
from hypercorn.config import Config
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from idempotent.adapters.asgi import IdempotencyKeyMiddleware
from idempotent.adapters.idempotency_key import Problem

USER = {"Authorization": "Bearer of-alice"}


def user_of(scope: Any) -> str:
    return next((value.decode() for name, value in scope["headers"] if name == b"authorization"), "")


@dataclass
class Shop:
    """An application; what it answers, and what it has done."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    answer: bytes | None = None
    error: Exception | None = None
    parts: list[bytes] | None = None
    waits: threading.Event | None = None
    charged: list[bytes] = field(default_factory=list)
    began: threading.Event = field(default_factory=threading.Event)
    background: list[int] = field(default_factory=list)

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/{_:path}", self.charge, methods=["GET", "POST", "PATCH", "PUT"])])

    async def charge(self, request: Request) -> Response:
        self.charged.append(await request.body())
        self.began.set()
        await self._wait()
        if self.error is not None:
            raise self.error
        if self.parts is not None:
            return StreamingResponse(self._stream(), self.status, self.headers)
        answer = b"charge %d" % len(self.charged) if self.answer is None else self.answer
        task = BackgroundTask(self.background.append, len(self.charged))
        return Response(answer, self.status, self.headers, background=task)

    async def _stream(self) -> Any:
        for part in self.parts or ():
            yield part
            await self._wait()

    async def _wait(self) -> None:
        if self.waits is not None:
            assert await asyncio.to_thread(self.waits.wait, 60)


class Quiet(uvicorn.Server):
    """One that leaves the signals of the test's process alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def served(app: Any, kind: str = "uvicorn") -> Iterator[str]:
    """The address of an application on a server: uvicorn, hypercorn, or, for one of WSGI, hypercorn-wsgi."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen(200)
        address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        mode: Any = "wsgi" if kind.endswith("-wsgi") else "asgi"
        run, stop = _uvicorn(app, bound) if kind == "uvicorn" else _hypercorn(app, bound, mode)
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield address
        finally:
            stop()
            thread.join(30)
            assert not thread.is_alive()


def _uvicorn(app: Any, bound: socket.socket) -> tuple[Callable[[], None], Callable[[], None]]:
    server = Quiet(uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=5))

    def stop() -> None:
        server.should_exit = True

    return lambda: server.run([bound]), stop


def _hypercorn(
    app: Any, bound: socket.socket, mode: Literal["asgi", "wsgi"]
) -> tuple[Callable[[], None], Callable[[], None]]:
    config = Config()
    config.bind = [f"fd://{bound.dup().detach()}"]
    config.errorlog = None
    config.graceful_timeout = 5
    ended = threading.Event()

    async def until_ended() -> None:
        await asyncio.to_thread(ended.wait)

    return lambda: asyncio.run(
        hypercorn_serve(app, config, shutdown_trigger=until_ended, mode=mode)
    ), ended.set


@dataclass
class Client:
    """A user's HTTP client, of one protected shop."""

    shop: Shop
    middleware: Any
    http: httpx.Client

    def post(self, key: str | None = "k", path: str = "/charge", **options: Any) -> httpx.Response:
        headers = {**USER, **options.pop("headers", {})}
        if key is not None:
            headers["Idempotency-Key"] = key
        method = options.pop("method", "POST")
        content = options.pop("content", b"10 EUR")
        return self.http.request(method, path, headers=headers, content=content, **options)


@contextmanager
def client_of(checker: Any, server: str = "uvicorn", **options: Any) -> Iterator[Client]:
    shop = Shop()
    middleware = IdempotencyKeyMiddleware(
        shop.app, checker=checker, **{"scope": user_of, "group": "tests", **options}
    )
    with served(middleware, server) as address, httpx.Client(base_url=address, timeout=60) as http:
        yield Client(shop, middleware, http)


def problem_of(answer: httpx.Response) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    content = answer.json()
    assert content["status"] == answer.status_code
    assert content["title"]
    assert content["detail"]
    return str(content["type"]).removeprefix(Problem.BAD_KEY.urn.removesuffix("bad-key"))


def until(happened: Callable[[], Any], timeout_s: float = 30) -> None:
    end = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)
