"""Server processes that are killed in a request, and after its COMMIT; and many copies of one request at once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property

import httpx
import pytest
from django.db import connections

from tests.adapters.django_plugin.project import effects
from tests.project.house import ROOT

pytestmark = pytest.mark.slow
DEADLINE_S = 60
RUNS_S = 10


class Served:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.says = process.stdout
        self.http = httpx.Client(timeout=DEADLINE_S, limits=httpx.Limits(max_connections=100))

    @cached_property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.says.readline().strip()}"

    def post(self, key: str, order: str) -> httpx.Response:
        headers = {"Authorization": "Bearer of-alice", "Idempotency-Key": key}
        return self.http.post(f"{self.address}/slow/{order}", headers=headers)


@contextmanager
def served(url: str, kind: str = "wsgi", **environ: str) -> Iterator[Served]:
    words = [sys.executable, "-m", "tests.adapters.django_plugin.serve", url, kind]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **environ}
    ) as process:
        try:
            server = Served(process)
            with server.http:
                yield server
        finally:
            process.kill()


@pytest.fixture(params=["wsgi", "asgi"])
def kind(request, alias):
    """WSGI over each database, and ASGI over one of them."""
    if request.param == "asgi" and alias != "postgres":
        pytest.skip("the server makes no difference to the database")
    return request.param


def done(alias: str) -> list[str]:
    connections[alias].close()
    return effects(alias)


def test_killed_between_effect_and_commit_a_copy_runs_at_once(alias, url, kind):
    with ThreadPoolExecutor(1) as threads, served(url, kind, SLEEPS_S="60") as server:
        assert server.address
        request = threads.submit(server.post, "k", "a")
        assert server.says.readline() == "charged\n"
        server.process.kill()
        assert isinstance(request.exception(), httpx.HTTPError)
    assert done(alias) == []
    with served(url, kind) as server:
        assert server.address
        began = time.monotonic()
        answers = [server.post("k", "a") for _ in range(2)]
        assert time.monotonic() - began < DEADLINE_S / 2
    assert answers[0].json() == answers[1].json()
    assert answers[1].headers["idempotent-replayed"] == "true"
    assert done(alias) == ["a"]


def test_killed_between_commit_and_answer_a_copy_has_the_stored_answer(alias, url, kind):
    with served(url, kind, DIES="answer") as server:
        with pytest.raises(httpx.HTTPError):
            server.post("k", "a")
        assert server.process.wait(DEADLINE_S) == -signal.SIGKILL
        dead = server.process.pid
    assert done(alias) == ["a"]
    with served(url, kind) as server:
        answer = server.post("k", "a")
    assert answer.headers["idempotent-replayed"] == "true"
    assert answer.json() == {"charged": "a", "by": dead}
    assert done(alias) == ["a"]


def test_under_asgi_a_client_that_hangs_up_undoes_the_view_and_its_copy_runs(postgres, postgres_project):
    """Although a plain view runs to its end: Django has cancelled its request by then."""
    with served(postgres_project, "asgi", SLEEPS_S="3", WAIT_S="60") as server:
        port = int(server.address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client:
            client.sendall(
                b"POST /slow/a HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer of-alice\r\n"
                b"Idempotency-Key: k\r\nContent-Length: 0\r\n\r\n"
            )
            assert server.says.readline() == "charged\n"
        first, second = (server.post("k", "a") for _ in range(2))
    assert (first.status_code, "idempotent-replayed" in first.headers) == (200, False)
    assert second.headers["idempotent-replayed"] == "true"
    assert done(postgres) == ["a"]


def test_of_50_copies_in_two_processes_one_runs_and_the_others_are_told_quickly(postgres, postgres_project):
    url = postgres_project
    with (
        served(url, SLEEPS_S=str(RUNS_S)) as first,
        served(url, SLEEPS_S=str(RUNS_S)) as second,
        ThreadPoolExecutor(51) as threads,
    ):
        both = first, second
        assert {server.post(server.address, "warm").status_code for server in both} == {200}
        took: list[float] = []

        def post(number: int) -> httpx.Response:
            began = time.monotonic()
            answer = both[number % 2].post("k", "a")
            took.append(time.monotonic() - began)
            return answer

        answers = list(threads.map(post, range(50)))
        assert Counter(answer.status_code for answer in answers) == {200: 1, 409: 49}
        assert sorted(took)[-2] < RUNS_S - 1
        assert first.post("k", "a").headers["idempotent-replayed"] == "true"
    assert done(postgres) == ["warm", "warm", "a"]
