"""What is answered to which request: the table of docs/http.md, over every kind of checker."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient

from idempotent import ConfigurationError, Outcome
from idempotent.adapters.asgi import IdempotencyKeyMiddleware
from idempotent.checkers import MemoryChecker, RedisChecker, TransactionalSqlChecker
from idempotent.errors import UnknownCheckerError
from idempotent.observe import counters
from idempotent.registry import default_registry
from tests.adapters.asgi.serving import USER, Client, Shop, client_of, problem_of, user_of
from tests.functions.kinds import Kind
from tests.project.house import ROOT

PAGE = ROOT / "docs" / "http.md"
FREE = (401, 403, 408, 425, 429, 500, 503)


def has_no_key(client: Client) -> httpx.Response:
    assert client.post(None).text == "charge 1"
    answer = client.post(None)
    assert answer.text == "charge 2"
    return answer


def has_no_key_but_must(client: Client) -> httpx.Response:
    assert client.post(method="GET", key=None).text == "charge 1"  # it is not among the methods
    answer = client.post(None)
    assert answer.headers["link"].startswith("<https://shop.example/docs>")
    assert len(client.shop.charged) == 1
    return answer


def has_bad_key(client: Client) -> httpx.Response:
    bad = ["", '""', "a b", '"a', 'a"b', "k" * 256, '"' + "k" * 256 + '"', "k" * 10_000, "a,b", '"a\\b"']
    raw = [b"schl\xc3\xbcssel", b"a\x7fb", b"\x80"]
    for key in bad:
        assert problem_of(client.post(key)) == "bad-key"
    for value in raw:
        assert problem_of(client.post(None, headers={"Idempotency-Key": value})) == "bad-key"
    headers = [("Authorization", "a"), ("Idempotency-Key", "k"), ("Idempotency-Key", "k")]
    answer = client.http.post("/charge", headers=headers)
    assert client.shop.charged == []
    assert client.post("k" * 255).status_code == 200
    return answer


def has_nobody(client: Client) -> httpx.Response:
    answer = client.post(headers={"Authorization": ""})
    assert client.shop.charged == []
    return answer


def has_long_body(client: Client) -> httpx.Response:
    assert client.post("whole", content=b"x" * 1000).status_code == 200
    pieces = client.post("pieces", content=iter([b"x" * 600, b"x" * 600]))
    assert problem_of(pieces) == "body-too-long"
    answer = client.post(content=b"x" * 1001)
    assert len(client.shop.charged) == 1
    return answer


def is_new(client: Client) -> httpx.Response:
    client.shop.status = 201
    answer = client.post()
    assert (answer.status_code, answer.text) == (201, "charge 1")
    assert "idempotent-replayed" not in answer.headers
    assert client.post(headers={"Authorization": "Bearer of-bob"}).text == "charge 2"
    assert client.post("other").text == "charge 3"
    return answer


def is_done(client: Client) -> httpx.Response:
    client.shop.status = 201
    client.shop.headers = {
        "Location": "/charges/1",
        "Set-Cookie": "session=1",
        "X-Trace": "a",
        "Connection": "x-trace",
        "Access-Control-Expose-Headers": "Location",
    }
    first = client.post("k")
    client.shop.status = 200
    for key in ("k", '"k"'):
        answer = client.post(key)
        assert (answer.status_code, answer.content) == (201, first.content)
        assert answer.headers["idempotent-replayed"] == "true"
        assert answer.headers["location"] == "/charges/1"
        assert answer.headers["access-control-expose-headers"] == "Location, Idempotent-Replayed"
        assert not {"set-cookie", "x-trace"} & answer.headers.keys()
        assert len(answer.headers.get_list("date")) == 1  # the server's
    assert len(client.shop.charged) == 1
    return answer


def is_refused_for_good(client: Client) -> httpx.Response:
    for status in (400, 404, 409, 422):
        client.shop.status = status
        assert client.post(str(status)).status_code == status
        answer = client.post(str(status))
        assert (answer.status_code, answer.headers["idempotent-replayed"]) == (status, "true")
    assert len(client.shop.charged) == 4
    return answer


def runs_now(client: Client) -> httpx.Response:
    client.shop.waits = Event()
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(client.post)
        assert client.shop.began.wait(30)
        answer = client.post()
        assert answer.headers["retry-after"] == "1"
        client.shop.waits.set()
        assert first.result().text == "charge 1"
    assert client.post().text == "charge 1"
    assert len(client.shop.charged) == 1
    return answer


def runs_now_and_may_wait(client: Client) -> httpx.Response:
    client.shop.waits = Event()
    with ThreadPoolExecutor(9) as threads:
        first = threads.submit(client.post)
        assert client.shop.began.wait(30)
        copies = [threads.submit(client.post) for _ in range(8)]
        client.shop.waits.set()
        assert first.result().text == "charge 1"
        for copy in copies:
            answer = copy.result()
            assert (answer.text, answer.headers["idempotent-replayed"]) == ("charge 1", "true")
    return answer


def is_other(client: Client) -> httpx.Response:
    assert client.post(path="/charge?a=1").status_code == 200
    for other in (
        {"path": "/charge?a=2"},
        {"path": "/refund?a=1"},
        {"path": "/charge?a=1", "content": b"11 EUR"},
        {"path": "/charge?a=1", "method": "PATCH"},
    ):
        answer = client.post(**other)
        assert problem_of(answer) == "other-request"
    assert len(client.shop.charged) == 1
    assert client.post(path="/charge?a=1").text == "charge 1"
    return answer


def failed(client: Client) -> httpx.Response:
    for status in FREE:
        client.shop.status = status
        answers = [client.post() for _ in range(2)]
        assert {answer.status_code for answer in answers} == {status}
        assert answers[0].content != answers[1].content
    client.shop.status, client.shop.headers = 409, {"Retry-After": "1"}  # as of another one that runs
    assert [client.post().text for _ in range(2)] == [f"charge {2 * len(FREE) + each}" for each in (1, 2)]
    client.shop.headers = {}
    client.shop.status, client.shop.error = 200, ValueError("a bug")
    for _ in range(6):
        # The server closes the connection, because the application raised after its answer.
        assert client.post(headers={"Connection": "close"}).status_code == 500
    client.shop.error = None
    answer = client.post()
    assert answer.text == f"charge {2 * len(FREE) + 9}"
    return answer


def has_long_answer(client: Client) -> httpx.Response:
    client.shop.answer = b"x" * 1001
    assert client.post().content == client.shop.answer
    answer = client.post()
    assert len(client.shop.charged) == 1
    return answer


# A request, its answer, the options of the middleware, and what happens before it.
ROWS: list[tuple[str, str, dict[str, Any], Callable[[Client], httpx.Response]]] = [
    ("has no key", "runs, unprotected", {}, has_no_key),
    ("has no key, with `required=True`", "400 `missing-key`", {"required": True}, has_no_key_but_must),
    (
        "has two keys, or one that is not 1 to 255 visible ASCII characters",
        "400 `bad-key`",
        {},
        has_bad_key,
    ),
    ("has a key and no user: `scope=` returns an empty text", "400 `no-owner`", {}, has_nobody),
    ("has a key and a body longer than `max_body`", "413 `body-too-long`", {"max_body": 1000}, has_long_body),
    ("has a key that is new for its user", "runs; the answer is stored, then sent", {}, is_new),
    ("is the copy of one that is done", "the stored answer, with `Idempotent-Replayed: true`", {}, is_done),
    (
        (
            "is the copy of one that was refused for good, such as with 400, 402 or 404 (without a session [raised "
            "ones](reference/frameworks.md#which-answers-free-the-key) too)"
        ),
        "the stored answer, with `Idempotent-Replayed: true`",
        {},
        is_refused_for_good,
    ),
    ("is the copy of one that runs now", "409 `in-progress` and `Retry-After: 1`", {}, runs_now),
    (
        "is the copy of one that runs now, with `wait_s=`",
        "the stored answer, with `Idempotent-Replayed: true`; 409 after that time",
        {"wait_s": 60},
        runs_now_and_may_wait,
    ),
    (
        "differs from the first with its key in method, path, query or body",
        "422 `other-request`",
        {},
        is_other,
    ),
    (
        (
            "is the copy of one that was answered with 401, 403, 408, 425, 429, 5xx or an error with "
            "`Retry-After`, or raised"
        ),
        "runs again",
        {},
        failed,
    ),
    (
        "is the copy of one whose answer was longer than `max_body`",
        "409 `answer-not-stored`",
        {"max_body": 1000},
        has_long_answer,
    ),
]
# These need a death, or a store that is away: test_deaths.py, and below.
ELSEWHERE = [
    (
        "is the copy of one that a person has marked as done, by `keys resolve --done`",
        "409 `answer-not-stored`",
    ),
    (
        "is the copy of one in which its process died",
        "runs again: with a transaction at once, with leases after at most `lease_s` of 409",
    ),
    (
        'is the copy of one in which its process died, with leases and `on_expired_lease="park"`',
        "409 `effect-unknown`, which names the key for `idempotent keys resolve`",
    ),
    ("has a key, and the store does not answer", "503 `unavailable` and `Retry-After: 1`"),
]


def demand(answer: httpx.Response, expected: str) -> None:
    """Demand that an answer is what a row of the page says."""
    found = re.fullmatch(r"(\d+) `([a-z-]+)`( and `Retry-After: 1`)?", expected)
    if found:
        assert answer.status_code == int(found[1])
        assert problem_of(answer) == found[2]
        assert ("retry-after" in answer.headers) is bool(found[3])
    else:
        assert ("idempotent-replayed" in answer.headers) is ("Idempotent-Replayed" in expected)


@pytest.mark.parametrize("row", ROWS, ids=[row[3].__name__ for row in ROWS])
def test_a_request_gets_the_answer_of_the_table(kind: Kind, row: Any) -> None:
    _, expected, options, happens = row
    with client_of(kind.checker, docs="https://shop.example/docs", **options) as client:
        answer = happens(client)
        demand(answer, expected)


def test_the_table_is_that_of_the_page() -> None:
    table = PAGE.read_text().partition("| a request that ")[2]
    rows = re.findall(r"^\| (\S.+?) \| (.+) \|$", table, re.MULTILINE)
    assert rows == [*(row[:2] for row in ROWS), *ELSEWHERE]


@pytest.mark.parametrize("status", [402, 404, 409, 422, 401, 429, 500])
@pytest.mark.parametrize("raises", [False, True], ids=["returned", "raised"])
def test_fastapi_makes_an_answer_of_an_exception_which_is_stored_as_one(status: int, *, raises: bool) -> None:
    api, charged = FastAPI(), []
    api.add_middleware(IdempotencyKeyMiddleware, checker=MemoryChecker(), group="shop", scope=user_of)

    @api.post("/charge")
    def charge() -> Any:
        charged.append(status)
        if raises:
            raise HTTPException(status)
        return JSONResponse({}, status)

    with TestClient(api, headers={**USER, "Idempotency-Key": "k"}) as client:
        assert [client.post("/charge").status_code for _ in range(2)] == [status, status]
    assert len(charged) == (2 if status in FREE else 1)


def test_a_copy_that_waits_for_one_that_fails_runs_in_its_place(kind: Kind) -> None:
    with client_of(kind.checker, wait_s=60) as client, ThreadPoolExecutor(5) as threads:
        client.shop.status, client.shop.waits = 503, Event()
        first = threads.submit(client.post)
        assert client.shop.began.wait(30)
        copies = [threads.submit(client.post) for _ in range(4)]
        assert problem_of(client.post(content=b"11 EUR")) == "other-request"
        client.shop.waits.set()
        answers = {answer.result().text for answer in (first, *copies)}
        assert answers == {f"charge {number}" for number in range(1, 6)}


def test_a_store_that_does_not_answer_lets_nothing_run(private_redis: Any) -> None:
    server = private_redis()
    with closing(RedisChecker(server.url)) as checker, client_of(checker) as client:
        assert client.post().text == "charge 1"
        server.kill()
        for key in ("k", "new"):
            answer = client.post(key)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert problem_of(answer) == "unavailable"
        assert client.post(None).text == "charge 2"
        assert len(client.shop.charged) == 2


def test_two_middlewares_that_would_wait_for_each_other_are_refused() -> None:
    shop = Shop()
    options = {"checker": MemoryChecker(), "group": "shop", "scope": user_of}
    inner = IdempotencyKeyMiddleware(shop.app, **options)  # type: ignore[arg-type]
    twice: Any = IdempotencyKeyMiddleware(inner, **options)  # type: ignore[arg-type]

    async def post(**headers: str) -> str:
        transport = httpx.ASGITransport(twice)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop", headers=USER) as client:
            return (await client.post("/charge", headers=headers)).text

    for _ in range(2):
        with pytest.raises(ConfigurationError, match="two IdempotencyKeyMiddlewares with one checker and gr"):
            asyncio.run(post(**{"Idempotency-Key": "k"}))
    assert asyncio.run(post()) == "charge 1"


def test_a_checker_with_a_synchronous_engine_is_refused_where_it_is_given(tmp_path: Path) -> None:
    checker = TransactionalSqlChecker(f"sqlite:///{tmp_path}/shop.db")
    with pytest.raises(ConfigurationError, match=r"give the TransactionalSqlChecker an AsyncEngine.*SQLite"):
        IdempotencyKeyMiddleware(Shop().app, checker=checker, group="shop", scope=user_of)


def test_copies_are_answered_one_after_the_other_so_that_they_hold_up_nobody() -> None:
    answered: list[bytes] = []
    turns: list[int] = []

    async def post(middleware: IdempotencyKeyMiddleware) -> None:
        async def send(event: Any) -> None:
            if event["type"] == "http.response.body":
                answered.append(event["body"])

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        headers = [(b"idempotency-key", b"k")]
        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
        await middleware(scope, receive, send)

    async def run() -> None:
        goes_on = asyncio.Event()

        async def app(_: Any, __: Any, send: Any) -> None:
            await goes_on.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"charged"})

        options: Any = {"checker": MemoryChecker(), "group": "shop", "scope": lambda _: "alice"}
        middleware = IdempotencyKeyMiddleware(app, wait_s=60, **options)
        copies = [asyncio.create_task(post(middleware)) for _ in range(50)]
        for _ in range(50):
            await asyncio.sleep(0)
        assert answered == []
        goes_on.set()
        while len(answered) < len(copies):
            before = len(answered)
            await asyncio.sleep(0)
            turns.append(len(answered) - before)
        await asyncio.gather(*copies)

    asyncio.run(run())
    assert answered == [b"charged"] * 50
    assert max(turns) == 1


def test_copies_that_wait_in_memory_are_counted_as_if_they_had_asked_the_store() -> None:
    shop = Shop(waits=Event())
    options: Any = {"checker": MemoryChecker(), "group": "counted", "scope": user_of, "wait_s": 60}

    async def run() -> list[int]:
        transport = httpx.ASGITransport(IdempotencyKeyMiddleware(shop.app, **options))
        async with httpx.AsyncClient(transport=transport, base_url="http://shop", headers=USER) as client:
            headers = {"Idempotency-Key": "k"}
            sent = [
                asyncio.create_task(client.post("/charge", headers=headers, content=content))
                for content in ("1", "1", "2")
            ]
            await sent[2]
            assert shop.waits is not None
            shop.waits.set()
            return [(await each).status_code for each in sent]

    assert asyncio.run(run()) == [200, 200, 422]
    counted = {
        what: count for (name, what), count in counters.snapshot().items() if name == "http:counted" and count
    }
    assert counted == {Outcome.PROCESSED: 1, Outcome.DUPLICATE: 1, Outcome.REJECTED: 1}


def test_a_checker_may_be_named_and_overridden() -> None:
    shop = Shop()
    middleware = IdempotencyKeyMiddleware(shop.app, checker="asgi-shop", group="shop", scope=user_of)

    async def post() -> str:
        transport = httpx.ASGITransport(middleware)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop", headers=USER) as client:
            return (await client.post("/charge", headers={"Idempotency-Key": "k"})).text

    with pytest.raises(UnknownCheckerError, match="no checker is named 'asgi-shop'"):
        asyncio.run(post())
    default_registry.checker("asgi-shop", MemoryChecker())
    assert [asyncio.run(post()) for _ in range(2)] == ["charge 1"] * 2
    with default_registry.override("asgi-shop", MemoryChecker()):
        assert [asyncio.run(post()) for _ in range(2)] == ["charge 2"] * 2
    assert asyncio.run(post()) == "charge 1"


def test_options_are_refused_where_they_are_given_although_the_checker_is_named() -> None:
    with pytest.raises(ConfigurationError, match="group"):
        IdempotencyKeyMiddleware(Shop().app, checker="later", group="", scope=user_of)
