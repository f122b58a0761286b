"""The middleware for WSGI: the table of docs/http.md, its transaction, and a process that is killed."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from idempotent import ConfigurationError
from idempotent.adapters.wsgi import SESSION, IdempotencyKeyMiddleware, authorization
from idempotent.admin import KeyFilter
from idempotent.checkers import MemoryChecker, TransactionalSqlChecker
from idempotent.claims import KeyStatus
from idempotent.migrations import upgrade
from tests.adapters.asgi.serving import USER
from tests.adapters.asgi.test_matrix import ROWS, demand
from tests.adapters.wsgi.shop import PlainShop, client_of
from tests.functions.kinds import Kind, kind_of
from tests.support.stores import Store, open_store

KINDS = (
    "memory",
    "postgres",
    "redis",
    "sqlite-transactional",
    "mysql-transactional",
    "postgres-transactional",
)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    with contextmanager(open_store)(request.param.partition("-")[0], request, reuse=True) as store:
        yield kind_of(request.param, store)


@pytest.mark.parametrize("row", ROWS, ids=[row[3].__name__ for row in ROWS])
def test_a_request_gets_the_answer_of_the_table(kind: Kind, row: Any) -> None:
    _, expected, options, happens = row
    with client_of(kind.checker, docs="https://shop.example/docs", **options) as client:
        answer = happens(client)
        assert isinstance(client.shop, PlainShop)
        assert client.shop.open_answers == 0
        demand(answer, expected)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with contextmanager(open_store)(request.param, request, reuse=True) as opened:
        yield opened


def test_what_an_endpoint_writes_commits_with_its_answer_or_not_at_all(store: Store) -> None:
    effects = sa.table(f"{store.table}_effects", sa.column("id"))
    status, failure = "500 Internal Server Error", [ValueError("a bug")]

    def charge(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        environ[SESSION].execute(effects.insert().values(id="a"))
        if failure:
            raise failure.pop()
        start_response(status, [])
        return [b"charged"]

    options: Any = {"checker": store.transactional(), "group": "tests", "scope": authorization}
    transport = httpx.WSGITransport(IdempotencyKeyMiddleware(charge, **options))
    with httpx.Client(transport=transport, base_url="http://shop") as http:

        def post() -> int:
            return http.post("/charge", headers={**USER, "Idempotency-Key": "k"}).status_code

        with pytest.raises(ValueError, match="a bug"):
            post()
        assert (post(), store.booked()) == (500, {})
        status = "402 Payment Required"
        assert [post(), post()] == [402, 402]
    assert store.booked() == {"a": 1}


@contextmanager
def process_of(store: Store, waits: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    words = [sys.executable, "-m", "tests.adapters.wsgi.shop", store.url, store.table, waits]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, f"http://127.0.0.1:{process.stdout.readline().strip()}/charge"
        finally:
            process.kill()


def test_a_copy_of_a_request_whose_process_was_killed_runs_at_once(store: Store) -> None:
    headers = {**USER, "Idempotency-Key": "k"}
    with ThreadPoolExecutor(1) as threads, process_of(store, "yes") as (process, address):
        request = threads.submit(httpx.post, address, headers=headers, timeout=60)
        assert process.stdout is not None
        assert process.stdout.readline() == "charged\n"
        process.kill()
        assert isinstance(request.exception(), httpx.HTTPError)
    with process_of(store, "no") as (_, address):
        answers = [httpx.post(address, headers=headers, timeout=60) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].text == answers[1].text
    assert answers[1].headers["idempotent-replayed"] == "true"
    assert store.booked() == {"a": 1}


def test_an_asynchronous_engine_and_a_wrong_option_are_refused_where_they_are_given() -> None:
    url = "postgresql+psycopg_async://nobody@localhost/shop"
    with pytest.raises(ConfigurationError, match="AsyncEngine"):
        IdempotencyKeyMiddleware(
            PlainShop().wsgi,
            checker=TransactionalSqlChecker(create_async_engine(url)),
            group="shop",
            scope=authorization,
        )
    with pytest.raises(ConfigurationError, match="store is 'final' or 'all'"):
        IdempotencyKeyMiddleware(
            PlainShop().wsgi,
            checker=MemoryChecker(),
            group="shop",
            scope=authorization,
            store="some",  # type: ignore[arg-type]
        )
    with pytest.raises(ConfigurationError, match="write '/orders/\\*'"):
        IdempotencyKeyMiddleware(
            PlainShop().wsgi, checker=MemoryChecker(), group="shop", scope=authorization, paths=["orders/*"]
        )


@pytest.mark.parametrize("kind", [name for name in KINDS if "-" not in name], indirect=True)
def test_what_an_interrupted_request_leaves_waits_for_a_person_where_deaths_do(kind: Kind) -> None:
    with client_of(kind.checker, on_expired_lease="park") as client:
        client.shop.error = SystemExit(1)
        app, statuses = client.middleware, []
        environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "HTTP_IDEMPOTENCY_KEY": "k"}
        environ |= {"HTTP_AUTHORIZATION": USER["Authorization"], "wsgi.input": io.BytesIO()}
        with pytest.raises(SystemExit):
            app(environ, lambda *_: None)
        client.shop.error = None
        app(environ, lambda status, _: statuses.append(status))
        assert statuses == ["409 Conflict"]
        admin = kind.checker.admin()
        (record,) = admin.list(KeyFilter("http:tests", frozenset({KeyStatus.DEAD})))
        assert admin.mark_done(record)
        (answer,) = app(environ, lambda status, _: statuses.append(status))
        assert statuses[1:] == ["409 Conflict"]
        assert b"answer-not-stored" in answer
        assert b"a person has recorded that the request took effect" in answer


def test_a_body_that_is_not_whole_runs_nothing_and_the_whole_one_does() -> None:
    with client_of(MemoryChecker()) as client:
        environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "HTTP_IDEMPOTENCY_KEY": "k"}
        environ |= {"HTTP_AUTHORIZATION": USER["Authorization"], "CONTENT_LENGTH": "11"}
        statuses: list[str] = []
        client.middleware(
            {**environ, "wsgi.input": io.BytesIO(b"hello")}, lambda status, _: statuses.append(status)
        )
        assert (statuses, client.shop.charged) == (["400 Bad Request"], [])
        client.middleware({**environ, "wsgi.input": io.BytesIO(b"hello world")}, lambda *_: None)
        assert client.shop.charged == [b"hello world"]


@pytest.mark.parametrize("answer", [["text"], b"raw", 7])
def test_what_is_no_answer_is_an_error_of_the_application(answer: Any) -> None:
    def broken(environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", [])
        return answer

    app = IdempotencyKeyMiddleware(broken, checker=MemoryChecker(), group="tests", scope=lambda _: "u")
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "HTTP_IDEMPOTENCY_KEY": "k"}
    with pytest.raises(TypeError):
        app({**environ, "wsgi.input": io.BytesIO()}, lambda *_: None)


def answers_of(app: Any) -> list[tuple[str, bytes]]:
    """What two requests with one key get."""
    protected = IdempotencyKeyMiddleware(app, checker=MemoryChecker(), group="tests", scope=lambda _: "u")
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "HTTP_IDEMPOTENCY_KEY": "k"}
    statuses: list[str] = []
    bodies = [
        b"".join(protected({**environ, "wsgi.input": io.BytesIO()}, lambda *begun: statuses.append(begun[0])))
        for _ in range(2)
    ]
    return list(zip(statuses, bodies, strict=True))


def test_an_answer_that_an_error_takes_the_place_of_is_not_sent() -> None:
    runs = []

    def charge(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        runs.append(environ)
        start_response("200 OK", [])
        yield b""
        try:
            int("a bug")
        except ValueError:
            start_response("500 Oops", [], sys.exc_info())
        yield b"sorry"

    assert answers_of(charge) == [("500 Oops", b"sorry")] * 2
    assert len(runs) == 2


def test_an_error_behind_the_begin_of_an_answer_is_raised() -> None:
    def charge(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"char"
        try:
            int("a bug")
        except ValueError:
            start_response("500 Oops", [], sys.exc_info())
        yield b"sorry"

    with pytest.raises(ValueError, match="a bug"):
        answers_of(charge)


def test_an_answer_that_begins_twice_is_an_error_of_the_application() -> None:
    def charge(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        start_response("201 Created", [])
        return [b"charged"]

    with pytest.raises(RuntimeError, match="without exc_info"):
        answers_of(charge)


def test_a_stored_answer_has_the_usual_words_of_its_status() -> None:
    def charge(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("201 Charged", [])
        return [b"charged"]

    assert answers_of(charge) == [("201 Charged", b"charged"), ("201 Created", b"charged")]


def test_a_constraint_that_fails_at_the_commit_is_an_error_of_the_application(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    sa.event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
    upgrade(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE parents (id INTEGER PRIMARY KEY)")
        connection.exec_driver_sql(
            "CREATE TABLE children (id INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)"
        )

    def adopt(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        environ[SESSION].execute(sa.text("INSERT INTO children VALUES (7)"))
        start_response("200 OK", [])
        return [b"adopted"]

    checker = TransactionalSqlChecker(engine)
    app = IdempotencyKeyMiddleware(adopt, checker=checker, group="tests", scope=lambda _: "u")
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "HTTP_IDEMPOTENCY_KEY": "k"}
    with pytest.raises(sa.exc.IntegrityError):
        app({**environ, "wsgi.input": io.BytesIO()}, lambda *_: None)
