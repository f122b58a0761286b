"""What is answered to which request: the table of docs/http.md, over the databases of Django, and other checkers."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import PermissionDenied
from django.db import connections
from django.http import Http404
from django.test import AsyncClient, Client, override_settings

from idempotent import ConfigurationError
from idempotent.adapters.django import DjangoChecker, IdempotencyKeyMiddleware, authorization
from idempotent.adapters.idempotency_key import Problem
from idempotent.checkers import MemoryChecker
from tests.adapters.django_plugin.project import connections_closed, effects
from tests.adapters.django_plugin.shop.orders import orders
from tests.project.house import ROOT

PAGE = ROOT / "docs" / "http.md"
FREE = (401, 403, 408, 425, 429, 500, 503)


class Caller:
    """A user's client."""

    def __init__(self, alias: str, checker: Any = None) -> None:
        self.alias = alias
        self.options: dict[str, Any] = {
            "checker": checker or DjangoChecker(alias),
            "scope": authorization,
            "group": "tests",
        }
        self.client = self.client_of()

    def client_of(self, kind: type = Client) -> Any:
        """A client whose middleware has read these options."""
        client = kind(raise_request_exception=False)
        with override_settings(IDEMPOTENCY=self.options):
            client.handler.load_middleware(is_async=kind is AsyncClient)
        return client

    def set(self, **options: Any) -> None:
        self.options |= options
        self.client = self.client_of()

    def post(self, key: str | None = "k", path: str = "/charge", **options: Any) -> Any:
        headers = {"Authorization": "Bearer of-alice"} | options.pop("headers", {})
        if key is not None:
            headers["Idempotency-Key"] = key
        data, method = options.pop("data", b"10 EUR"), options.pop("method", "POST")
        return self.client.generic(method, path, data, headers=headers, **options)

    def effects(self) -> int:
        """How many effects are committed."""
        connections[self.alias].close()
        return len(effects(self.alias))


def text(answer: Any) -> str:
    return b"".join(answer).decode()


def problem_of(answer: Any) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    content = answer.json()
    assert content["status"] == answer.status_code
    return str(content["type"]).removeprefix(Problem.BAD_KEY.urn.removesuffix("bad-key"))


def has_no_key(caller: Caller) -> Any:
    assert text(caller.post(None)) == "charge 1"
    return caller.post(None)


def has_no_key_but_must(caller: Caller) -> Any:
    caller.set(required=True, docs="https://shop.example/docs")
    caller.post(None, method="GET")
    answer = caller.post(None)
    assert answer.headers["link"].startswith("<https://shop.example/docs>")
    assert len(orders.charged) == 1
    return answer


def has_bad_key(caller: Caller) -> Any:
    for key in ("", '""', "a b", '"a', "k" * 256, "a,b", '"a","b"', "schl\u00fcssel"):
        assert problem_of(caller.post(key)) == "bad-key"
    return caller.post("a\tb")


def has_nobody(caller: Caller) -> Any:
    return caller.post(headers={"Authorization": ""})


def has_long_body(caller: Caller) -> Any:
    caller.set(max_body=1000)
    assert caller.post("whole", data=b"x" * 1000).status_code == 200
    answer = caller.post(data=b"x" * 1001)
    assert len(orders.charged) == 1
    return answer


def is_new(caller: Caller) -> Any:
    orders.status = 201
    answer = caller.post()
    assert (answer.status_code, text(answer)) == (201, "charge 1")
    assert "idempotent-replayed" not in answer.headers
    assert text(caller.post(headers={"Authorization": "Bearer of-bob"})) == "charge 2"
    assert text(caller.post("other")) == "charge 3"
    assert caller.effects() == 3
    return answer


def is_done(caller: Caller) -> Any:
    orders.status, orders.headers = (
        201,
        {"Location": "/charges/1", "Access-Control-Expose-Headers": "Location"},
    )
    assert "session" in caller.post("k").cookies
    orders.status = 200
    for key in ("k", '"k"'):
        answer = caller.post(key)
        assert (answer.status_code, text(answer)) == (201, "charge 1")
        assert answer.headers["location"] == "/charges/1"
        assert answer.headers["access-control-expose-headers"] == "Location, Idempotent-Replayed"
        assert not answer.cookies
    assert (len(orders.charged), caller.effects()) == (1, 1)
    return answer


def is_refused_for_good(caller: Caller) -> Any:
    for status in (400, 404, 409, 422):
        orders.status = status
        assert caller.post(str(status)).status_code == status
        answer = caller.post(str(status))
        assert (answer.status_code, answer.headers["idempotent-replayed"]) == (status, "true")
    assert (len(orders.charged), caller.effects()) == (4, 4)
    return answer


def runs_now(caller: Caller) -> Any:
    orders.waits = Event()
    with connections_closed(), ThreadPoolExecutor(1) as threads:
        first = threads.submit(caller.post)
        assert orders.began.wait(30)
        answer = caller.post()
        assert answer.headers["retry-after"] == "1"
        assert problem_of(caller.post(data=b"other")) == "other-request"
        orders.waits.set()
        assert text(first.result()) == "charge 1"
    assert text(caller.post()) == "charge 1"
    return answer


def runs_now_and_is_waited_for(caller: Caller) -> Any:
    caller.set(wait_s=30)
    orders.waits = Event()
    with connections_closed(), ThreadPoolExecutor(2) as threads:
        first = threads.submit(caller.post)
        assert orders.began.wait(30)
        second = threads.submit(caller.post)
        orders.waits.set()
        assert text(first.result()) == text(second.result()) == "charge 1"
    return second.result()


def differs(caller: Caller) -> Any:
    caller.post()
    for change in ({"path": "/charge?order=b"}, {"method": "PATCH"}, {"path": "/missing"}):
        assert problem_of(caller.post(**change)) == "other-request"
    return caller.post(data=b"11 EUR")


def is_not_stored(caller: Caller) -> Any:
    for status in FREE:
        orders.status = status
        assert caller.post(str(status)).status_code == status
        assert caller.post(str(status)).status_code == status
    assert (len(orders.charged), caller.effects()) == (2 * len(FREE), 0)
    orders.status, orders.headers = 409, {"Retry-After": "1"}  # as of another request that runs
    assert [caller.post("told").status_code for _ in range(2)] == [409, 409]
    assert (len(orders.charged), caller.effects()) == (2 * len(FREE) + 2, 0)
    orders.status, orders.headers = 200, {}
    for error, status in ((ZeroDivisionError(), 500), (Http404(), 404), (PermissionDenied(), 403)):
        orders.error = error
        assert caller.post("raised").status_code == status
    assert caller.effects() == 0
    assert orders.committed == []
    orders.error = None
    orders.is_exception = True  # of Django REST framework
    orders.status = 400
    caller.post("raised")
    assert caller.effects() == 0
    orders.is_exception, orders.status = False, 200
    answer = caller.post("raised")
    assert caller.effects() == 1
    return answer


def answered_long(caller: Caller) -> Any:
    caller.set(max_body=1000)
    orders.body = b"x" * 1001
    assert len(text(caller.post())) == 1001
    answer = caller.post()
    assert (len(orders.charged), caller.effects()) == (1, 1)
    return answer


def store_is_away(caller: Caller) -> Any:
    with connections[caller.alias].cursor() as cursor:
        cursor.execute("ALTER TABLE deduplicate_tbl RENAME TO elsewhere")
    try:
        answer = caller.post()
    finally:
        with connections[caller.alias].cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO deduplicate_tbl")
    assert orders.charged == []
    assert answer.headers["retry-after"] == "1"
    return answer


ROWS: dict[str, tuple[str, Callable[[Caller], Any]]] = {
    "has no key": ("runs, unprotected", has_no_key),
    "has no key, with `required=True`": ("400 `missing-key`", has_no_key_but_must),
    "has two keys, or one that is not 1 to 255 visible ASCII characters": ("400 `bad-key`", has_bad_key),
    "has a key and no user: `scope=` returns an empty text": ("400 `no-owner`", has_nobody),
    "has a key and a body longer than `max_body`": ("413 `body-too-long`", has_long_body),
    "has a key that is new for its user": ("runs; the answer is stored, then sent", is_new),
    "is the copy of one that is done": ("the stored answer, with `Idempotent-Replayed: true`", is_done),
    "is the copy of one that was refused for good, such as with 400, 402 or 404 (without a session [raised ones](reference/frameworks.md#which-answers-free-the-key) too)": (  # noqa: E501
        "the stored answer, with `Idempotent-Replayed: true`",
        is_refused_for_good,
    ),
    "is the copy of one that runs now": ("409 `in-progress` and `Retry-After: 1`", runs_now),
    "is the copy of one that runs now, with `wait_s=`": (
        "the stored answer, with `Idempotent-Replayed: true`; 409 after that time",
        runs_now_and_is_waited_for,
    ),
    "differs from the first with its key in method, path, query or body": ("422 `other-request`", differs),
    "is the copy of one that was answered with 401, 403, 408, 425, 429, 5xx or an error with `Retry-After`, or raised": (  # noqa: E501
        "runs again",
        is_not_stored,
    ),
    "is the copy of one whose answer was longer than `max_body`": (
        "409 `answer-not-stored`",
        answered_long,
    ),
    "has a key, and the store does not answer": ("503 `unavailable` and `Retry-After: 1`", store_is_away),
}


@pytest.fixture
def caller(alias):
    orders.reset(alias)
    return Caller(alias)


@pytest.mark.parametrize("row", ROWS)
def test_a_request_is_answered_as_the_page_says(row, caller):
    says, ask = ROWS[row]
    answer = ask(caller)
    if status := re.match(r"(\d+) `([\w-]+)`", says):
        assert (answer.status_code, problem_of(answer)) == (int(status[1]), status[2])
    elif "Replayed" in says:
        assert answer.headers["idempotent-replayed"] == "true"
    else:
        assert answer.status_code in (200, 201)
        assert "idempotent-replayed" not in answer.headers


def test_the_page_has_these_rows():
    """Beside those that are about a death, which test_kills.py has, and about keys that a person decides on."""
    table = PAGE.read_text().partition("| a request that |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = {tuple(cell.strip() for cell in line.strip("| ").split(" | ")) for line in table}
    rest = rows - {(row, says) for row, (says, _) in ROWS.items()}
    assert len(rows) == len(rest) + len(ROWS)
    assert all("died" in row or "a person" in row for row, _ in rest)


def test_on_commit_runs_once_for_a_request(caller):
    caller.post()
    caller.post()
    assert orders.committed == [1]


def test_a_view_that_takes_back_what_it_wrote_keeps_its_refusal(caller):
    """As Django REST framework does with an error, in an atomic() that is open."""
    orders.rolls_back, orders.status = True, 422
    assert [caller.post().status_code for _ in range(2)] == [422, 422]
    assert (len(orders.charged), caller.effects()) == (1, 0)
    orders.status = 200
    assert [caller.post("ok").status_code for _ in range(2)] == [500, 500]  # it says what is not so
    assert (len(orders.charged), caller.effects()) == (3, 0)


def test_under_atomic_requests_it_is_the_same(caller):
    connections[caller.alias].settings_dict["ATOMIC_REQUESTS"] = True
    connections.settings[caller.alias]["ATOMIC_REQUESTS"] = True
    try:
        is_done(caller)
        orders.error = ZeroDivisionError()
        assert caller.post("raised").status_code == 500
        assert caller.effects() == 1
    finally:
        connections.settings[caller.alias]["ATOMIC_REQUESTS"] = False
        connections[caller.alias].settings_dict["ATOMIC_REQUESTS"] = False


@pytest.mark.parametrize("long", [False, True])
def test_a_stream_is_read_stored_and_sent(caller, long):
    caller.set(max_body=10)
    orders.parts = [b"one", b"two", b"three"] if long else [b"one", b"two"]
    assert text(caller.post()) == "".join(part.decode() for part in orders.parts)
    answer = caller.post()
    assert (problem_of(answer) if long else text(answer)) == ("answer-not-stored" if long else "onetwo")
    assert caller.effects() == 1


def test_a_stream_that_raises_while_it_is_read_is_not_stored(caller):
    def stream():
        yield b"one"
        raise ZeroDivisionError

    orders.parts = stream()
    assert caller.post().status_code == 500
    assert caller.effects() == 0
    orders.parts = None
    assert text(caller.post()) == "charge 2"


def test_paths_methods_and_store(caller):
    caller.set(paths=["/charge"], methods=["PUT"], store="all")
    orders.status = 500
    for method, runs in (("PUT", 1), ("POST", 3)):
        assert [caller.post(method=method).status_code for _ in range(2)] == [500, 500]
        assert len(orders.charged) == runs
    assert [caller.post(path="/missing", method="PUT").status_code for _ in range(2)] == [404, 404]


def test_an_async_view_writes_in_the_same_transaction(caller):
    client = caller.client_of(AsyncClient)

    def post(key: str = "k") -> Any:
        headers = {"Authorization": "Bearer of-alice", "Idempotency-Key": key}
        return async_to_sync(client.post)("/awaited", b"", content_type="text/plain", headers=headers)

    with connections_closed():
        assert [text(post()) for _ in range(2)] == ["charge 1"] * 2
        orders.error = ZeroDivisionError()
        assert post("raised").status_code == 500
    assert caller.effects() == 1


def test_with_another_checker_the_answers_are_the_same(alias):
    orders.reset(alias)
    caller = Caller(alias, MemoryChecker())
    assert text(caller.post()) == text(caller.post()) == "charge 1"
    assert problem_of(caller.post(data=b"other")) == "other-request"
    orders.error = ZeroDivisionError()
    assert caller.post("raised").status_code == 500
    orders.error = None
    assert text(caller.post("raised")) == "charge 3"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "needs 'group', and 'scope'"),
        ({"group": "tests"}, "needs 'group', and 'scope'"),
        ({"scope": authorization}, "needs 'group', and 'scope'"),
        ({"scope": authorization, "group": "tests", "wait": 1}, "wait"),
        ({"scope": authorization, "group": "tests", "methods": "POST"}, "list of texts"),
        ({"scope": authorization, "group": "tests", "store": "some"}, "final"),
    ],
)
def test_invalid_options_are_refused(postgres, options, says):
    with override_settings(IDEMPOTENCY=options), pytest.raises(ConfigurationError, match=says):
        IdempotencyKeyMiddleware(lambda _: None)


def test_options_may_be_paths(postgres):
    options = {"scope": "idempotent.adapters.django.authorization", "group": "tests", "checker": "memory://"}
    with override_settings(IDEMPOTENCY=options):
        assert IdempotencyKeyMiddleware(lambda _: None)._owner_of is authorization
