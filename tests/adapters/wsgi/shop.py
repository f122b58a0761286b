"""A shop as a WSGI application: in the test's process, and in one of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.client import responses
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import httpx
import sqlalchemy as sa

from idempotent.adapters.wsgi import SESSION, IdempotencyKeyMiddleware, authorization
from idempotent.checkers import TransactionalSqlChecker
from tests.adapters.asgi.serving import Client, Shop, served


class PlainShop(Shop):
    """The shop of the tests for ASGI, as a WSGI application."""

    open_answers = 0

    def wsgi(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        self.charged.append(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
        self.began.set()
        if self.waits is not None:
            assert self.waits.wait(60)
        if self.error is not None:
            raise self.error
        start_response(f"{self.status} {responses[self.status]}", [*self.headers.items()])
        answer = b"charge %d" % len(self.charged) if self.answer is None else self.answer
        self.open_answers += 1
        return _Parts(self, [answer[:3], answer[3:]])


class _Parts(list[bytes]):
    """An answer that wants to be closed."""

    def __init__(self, shop: PlainShop, parts: list[bytes]) -> None:
        super().__init__(parts)
        self._shop = shop

    def close(self) -> None:
        self._shop.open_answers -= 1


@contextmanager
def client_of(checker: Any, **options: Any) -> Iterator[Client]:
    shop = PlainShop()
    middleware = IdempotencyKeyMiddleware(
        shop.wsgi, checker=checker, **{"scope": authorization, "group": "tests", **options}
    )
    with served(middleware, "hypercorn-wsgi") as address, httpx.Client(base_url=address, timeout=60) as http:
        yield Client(shop, middleware, http)


class _Threads(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


def serve(url: str, table: str, waits: str) -> None:
    """A server whose every POST writes a row, says so, and then waits for a line if it is told to."""
    engine = sa.create_engine(url)
    effects = sa.table(f"{table}_effects", sa.column("id"))

    def charge(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ[SESSION].execute(effects.insert().values(id="a"))
        os.write(1, b"charged\n")
        if waits == "yes":
            sys.stdin.readline()
        start_response("200 OK", [])
        return [b"charged in %d" % os.getpid()]

    protected = IdempotencyKeyMiddleware(
        charge,
        checker=TransactionalSqlChecker(engine, table=table),
        scope=authorization,
        group="tests",
        required=True,
    )
    with make_server("127.0.0.1", 0, protected, _Threads, _Silent) as server:
        os.write(1, b"%d\n" % server.server_port)
        server.serve_forever()


if __name__ == "__main__":
    serve(*sys.argv[1:])
