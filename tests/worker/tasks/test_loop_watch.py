"""A handler that blocks the event loop is named in the log while it does, and loses no lease meanwhile."""

import asyncio
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from idempotent import Message, Outcome, Registry, Worker
from idempotent.adapters import MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.claims import Decision, Verdict
from idempotent.observe import Observer
from idempotent.worker.handlers.tasks import LoopWatch, OwnLoop, blocked_after_s, where
from tests.support.logs import events, logged
from tests.support.stores import Store
from tests.worker.running import SUBJECT, WAIT_S, Running, emptying, publish, until

LEASE_S = 0.6


def warnings(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [vars(record) for record in logged(caplog, "event_loop_blocked")]


def run(worker: Worker) -> object:
    return worker.run()


def serve(worker: Worker) -> object:
    return asyncio.run(worker.serve())


@pytest.mark.parametrize("work", [run, serve])
def test_it_says_which_consumer_stands_where_while_it_stands(
    registry: Registry,
    broker: MemoryBroker,
    caplog: pytest.LogCaptureFixture,
    work: Callable[[Worker], object],
) -> None:
    seen = []

    @registry.consumer("quick", checker=MemoryChecker(lease_s=LEASE_S))
    async def quick(_message: Message) -> None:
        await asyncio.sleep(0.3)

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    async def slow(_message: Message) -> None:
        await asyncio.sleep(0.05)
        until(lambda: warnings(caplog))
        seen.extend(warnings(caplog))

    publish(broker, 1, subject="quick")
    publish(broker, "a")
    work(emptying(registry, broker, concurrency=2))
    (said,) = seen
    assert said["consumers"] == ["orders:default"]
    assert said["blocked_s"] >= LEASE_S / 3 - 0.1
    # `until` is the test's own too; it stands in the innermost of the two.
    assert str(said["where"]).startswith(str(Path(__file__).parents[1] / "running.py"))
    assert str(said["where"]).endswith(" in until")


def test_a_loop_that_is_busy_and_not_blocked_is_not_complained_of(
    registry: Registry, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    @registry.consumer(SUBJECT, checker=MemoryChecker(lease_s=3.0))
    async def handle(_message: Message) -> None:
        for _ in range(150):
            time.sleep(0.01)  # noqa: ASYNC251 - it shall block
            await asyncio.sleep(0)

    publish(broker, "a")
    emptying(registry, broker).run()
    assert not warnings(caplog)


def test_it_is_said_once_a_minute_at_most_and_the_watch_ends_in_the_middle(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop, go = OwnLoop(lambda _error: None), threading.Event()
    watch = LoopWatch(loop.place, 0.05, lambda: ["a", "b"])
    watch.start()
    for _ in range(2):
        loop.place.loop.call_soon_threadsafe(time.sleep, 0.5)
    loop.place.loop.call_soon_threadsafe(go.wait, WAIT_S)
    until(lambda: warnings(caplog))
    time.sleep(1.5)
    watch.stop()
    go.set()
    loop.close(WAIT_S)
    assert [said["consumers"] for said in warnings(caplog)] == [["a", "b"]]


@pytest.mark.parametrize(
    ("leases_s", "limit_s"), [((), 10.0), ((None,), 10.0), ((30.0, None, 6.0), 2.0)], ids=repr
)
def test_the_limit_is_a_third_of_the_shortest_lease(
    leases_s: tuple[float | None, ...], limit_s: float
) -> None:
    assert blocked_after_s(leases_s) == limit_s


def test_an_application_installed_as_a_library_is_named_by_its_handler() -> None:
    frames = []
    space = {"look": lambda: frames.append(sys._getframe(1))}
    installed = sysconfig.get_path("purelib")
    source = "def helper():\n    look()\n\ndef on_paid():\n    helper()\n"
    exec(compile(source, f"{installed}/shop/handlers.py", "exec"), space)
    calling = {"__name__": "idempotent.processing.calling", "on_paid": space["on_paid"]}
    looping = {
        "__name__": "asyncio.events",
        "calling": calling,
        "code": compile("on_paid()", f"{installed}/idempotent/calling.py", "exec"),
    }
    exec("exec(code, calling)", looping)
    (frame,) = frames
    assert where(frame) == f"{installed}/shop/handlers.py:5 in on_paid"


@pytest.mark.slow
def test_the_leases_of_a_blocked_loop_are_renewed_and_no_other_worker_takes_its_message(
    shared_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    blocks = threading.Event()
    runs: list[str] = []
    refused: list[float] = []
    checkers = [shared_store.leased(lease_s=LEASE_S) for _ in range(2)]

    class Watching(Observer):
        def claimed(self, consumer: str, message: Message, request: object, answer: object) -> None:
            if isinstance(answer, Decision) and answer.verdict is Verdict.IN_PROGRESS:
                refused.append(time.monotonic())

    def worker(checker: AbstractIdempotentChecker) -> Worker:
        registry, broker = Registry([Watching()]), MemoryBroker()

        @registry.consumer(SUBJECT, checker=checker)
        async def handle(_message: Message) -> None:
            runs.append("ran")
            blocks.set()
            time.sleep(4 * LEASE_S)  # noqa: ASYNC251 - it shall block

        publish(broker, "a")
        return emptying(registry, broker)

    first = Running(worker(checkers[0]))
    assert blocks.wait(WAIT_S)
    began = time.monotonic()
    second = Running(worker(checkers[1]))
    assert first.join().summary[Outcome.PROCESSED] == 1
    assert second.join().summary[Outcome.DUPLICATE] == 1
    assert runs == ["ran"]
    assert max(refused) - began > 1.5 * LEASE_S, "nothing was tried after the first lease"
    assert warnings(caplog)
    assert not {"lease_lost", "completion_lost"} & {*events(caplog)}
