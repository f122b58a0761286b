"""What docs/django.md says of its limits: SQLite's one writer, bodies in many parts, connections opened anew."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from django.db import connections
from django.test import override_settings
from sqlalchemy import make_url

from idempotent import InProgressError, idempotent
from idempotent.adapters.django import DjangoChecker
from idempotent.errors import TransactionEscapedError
from tests.adapters.django_plugin.project import effects, empty, write
from tests.adapters.django_plugin.shop.orders import orders
from tests.adapters.django_plugin.test_middleware import Caller, problem_of, text

OURS = "idempotent.adapters.django.IdempotencyKeyMiddleware"


class Counting(DjangoChecker):
    """Counts its claims."""

    claims = 0

    def _claim_many(self, requests: Any) -> Any:
        self.claims += 1
        return super()._claim_many(requests)


@pytest.fixture
def caller(alias):
    orders.reset(alias)
    return Caller(alias)


@pytest.fixture
def beside_a_writer(sqlite_project):
    """The alias of a database of SQLite to which another connection writes; this thread's waits for it for 0.2 s."""
    path = make_url(sqlite_project).database
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        with connections["sqlite"].cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 200")
        other.execute("BEGIN IMMEDIATE")
        yield "sqlite"
        other.execute("ROLLBACK")
    connections["sqlite"].close()
    empty("sqlite")


def test_beside_another_writer_of_sqlite_a_request_has_503_after_one_wait(beside_a_writer):
    orders.reset(beside_a_writer)
    checker = Counting(beside_a_writer)
    answer = Caller(beside_a_writer, checker).post()
    assert (answer.status_code, problem_of(answer)) == (503, "unavailable")
    assert answer.headers["retry-after"] == "1"
    assert (checker.claims, orders.charged) == (1, [])


def test_beside_another_writer_of_sqlite_a_function_says_what_it_waits_for(beside_a_writer):
    checker = DjangoChecker(beside_a_writer)
    charge = idempotent(checker, group="tests", key="order", name="charge")(lambda order: order)
    with pytest.raises(InProgressError, match="another transaction writes to the file"):
        charge("a")


def parts(boundary: str) -> dict[str, Any]:
    """A request with a form in several parts."""
    body = f'--{boundary}\r\nContent-Disposition: form-data; name="item"\r\n\r\nlamp\r\n--{boundary}--\r\n'
    return {"data": body.encode(), "content_type": f"multipart/form-data; boundary={boundary}"}


def test_the_same_form_with_another_boundary_is_another_request(caller):
    assert [text(caller.post(**parts("one"))) for _ in range(2)] == ["charge 1"] * 2
    assert problem_of(caller.post(**parts("two"))) == "other-request"


class ReadsForm:
    """A middleware above ours that reads the form."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        assert request.POST["item"] == "lamp"
        return self.get_response(request)


class ReadsBody(ReadsForm):
    """One that reads the body first."""

    def __call__(self, request: Any) -> Any:
        assert request.body
        return super().__call__(request)


def test_a_form_that_a_middleware_has_read_above_is_refused_by_name(caller, caplog):
    with override_settings(MIDDLEWARE=[f"{__name__}.ReadsForm", OURS]):
        caller.client = caller.client_of()
    with caplog.at_level(logging.ERROR, "django.request"):
        assert caller.post(**parts("one")).status_code == 500
    assert "let it read request.body first" in caplog.text
    assert (orders.charged, caller.effects()) == ([], 0)
    with override_settings(MIDDLEWARE=[f"{__name__}.ReadsBody", OURS]):
        caller.client = caller.client_of()
    assert [text(caller.post(**parts("one"))) for _ in range(2)] == ["charge 1"] * 2
    assert caller.effects() == 1


def test_what_is_written_on_a_connection_opened_anew_is_no_success(alias):
    """It has left the transaction of the key: it stays, and a call again writes it again."""

    @idempotent(DjangoChecker(alias), group="tests", key="order", name="charge")
    def reopens(order: str) -> None:
        write(alias, "before")
        connections[alias].close()
        connections[alias].connect()
        write(alias, "after")

    for _ in range(2):
        with pytest.raises(TransactionEscapedError, match="closed the connection"):
            reopens("a")
    assert effects(alias) == ["after"] * 2


def test_a_view_that_opens_its_connection_anew_has_no_success(caller):
    orders.reopens = True
    assert [caller.post().status_code for _ in range(2)] == [500, 500]
    orders.reopens = False
    assert text(caller.post()) == "charge 3"
