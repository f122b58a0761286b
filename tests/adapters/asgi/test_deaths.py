"""Processes of a real server: killed in a request, and two of them behind one store."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cached_property

import httpx
import pytest
import sqlalchemy as sa

from tests.adapters.asgi.serving import USER, problem_of
from tests.support.stores import ASYNC_URLS, Store, open_store


class Served:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.says = process.stdout
        self.http = httpx.Client(timeout=60)

    @cached_property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.says.readline().strip()}"

    def post(self, key: str, order: str) -> httpx.Response:
        path = f"{self.address}/charge/{order}"
        return self.http.post(path, headers={**USER, "Idempotency-Key": key})


@contextmanager
def process_of(
    kind: str, store: Store, effects: Store, on_expired_lease: str = "retry", *, sleeps_s: float = 0
) -> Iterator[Served]:
    url = ASYNC_URLS[effects.kind](sa.make_url(effects.url)).render_as_string(hide_password=False)
    words = [
        sys.executable,
        "-m",
        "tests.adapters.asgi.shop_process",
        kind,
        store.url,
        url,
        store.table,
        effects.table,
        on_expired_lease,
        str(sleeps_s),
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            served = Served(process)
            with served.http:
                yield served
        finally:
            process.kill()


@pytest.fixture(
    params=[
        "transactional-postgres",
        pytest.param("transactional-mysql", marks=pytest.mark.slow),
        pytest.param("leased-postgres", marks=pytest.mark.slow),
        "leased-redis",
    ]
)
def places(request: pytest.FixtureRequest) -> Iterator[tuple[str, Store, Store]]:
    """The kind of the checker, where its keys are, and where the effects are."""
    kind, _, name = request.param.partition("-")
    with contextmanager(open_store)("postgres" if name == "redis" else name, request, reuse=True) as effects:
        if name == "redis":
            with contextmanager(open_store)(name, request) as store:
                yield kind, store, effects
        else:
            yield kind, effects, effects


def killed_in_a_request(served: Served, threads: ThreadPoolExecutor) -> None:
    request = threads.submit(served.post, "k", "a")
    assert served.says.readline() == "charged\n"
    served.process.kill()
    assert isinstance(request.exception(), httpx.HTTPError)


@pytest.mark.slow
def test_a_copy_of_a_request_whose_process_was_killed_runs_again(places: tuple[str, Store, Store]) -> None:
    kind, store, effects = places
    with ThreadPoolExecutor(1) as threads, process_of(kind, store, effects, sleeps_s=60) as served:
        killed_in_a_request(served, threads)
    with process_of(kind, store, effects) as served:
        began = time.monotonic()
        assert served.post("new", "b").status_code == 200
        answers = [served.post("k", "a") for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].text == answers[1].text
        assert answers[1].headers["idempotent-replayed"] == "true"
        assert time.monotonic() - began < 25
    # With leases the effect is not the key's: the first one was committed by nobody only because this endpoint does
    # so at its end.
    assert effects.booked() == {"a": 1, "b": 1}


@pytest.mark.slow
def test_with_park_no_copy_runs_after_a_death(places: tuple[str, Store, Store]) -> None:
    kind, store, effects = places
    if kind == "transactional":
        pytest.skip("a death leaves no doubt there")
    with ThreadPoolExecutor(1) as threads, process_of(kind, store, effects, "park", sleeps_s=60) as served:
        killed_in_a_request(served, threads)
    with process_of(kind, store, effects, "park") as served:
        answer = served.post("k", "a")  # it waits for the end of the lease
        assert answer.status_code == 409
        assert problem_of(answer) == "effect-unknown"
        assert answer.json()["key"].startswith("http:tests:")
    assert effects.booked() == {}


@pytest.mark.parametrize("copies", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_two_processes_and_many_copies_have_one_effect_and_one_answer(
    places: tuple[str, Store, Store], copies: int
) -> None:
    kind, store, effects = places
    with (
        process_of(kind, store, effects, sleeps_s=0.5) as first,
        process_of(kind, store, effects, sleeps_s=0.5) as second,
        ThreadPoolExecutor(40) as threads,
    ):
        both = first, second
        assert {server.post(server.address, "warm").status_code for server in both} == {200}
        alone = sorted(took_s(first, f"alone-{number}") for number in range(20))
        others = [threads.submit(both[number % 2].post, f"o-{number}", "o") for number in range(copies)]
        crowded = sorted(took_s(both[number % 2], f"crowded-{number}") for number in range(20))
        wait(others)
        answers = [threads.submit(both[number % 2].post, "k", "a") for number in range(copies)]
        beside = sorted(took_s(both[number % 2], f"beside-{number}") for number in range(20))
        bodies = Counter(answer.result().text for answer in answers)
        replayed = sum("idempotent-replayed" in answer.result().headers for answer in answers)
    sys.stdout.write(
        f"{kind}: another key took {alone[-1]:.3f} s at most alone, {crowded[-1]:.3f} s beside {copies} requests with "
        f"keys of their own, {beside[-1]:.3f} s beside {copies} copies\n"
    )
    assert len(bodies) == 1, bodies
    assert replayed == copies - 1
    assert effects.booked()["a"] == 1
    assert beside[-1] < 20


def took_s(served: Served, order: str) -> float:
    began = time.monotonic()
    assert served.post(order, order).status_code == 200
    return time.monotonic() - began
