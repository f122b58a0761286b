"""`async def` handlers are tasks of one loop, beside the threads of plain handlers."""

import asyncio
import errno
import random
import threading
import time
from collections import Counter

import pytest

from idempotent import Backoff, Message, Outcome, Registry, Worker
from idempotent.adapters import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from tests.worker.running import SUBJECT, WAIT_S, Recording, Running, emptying, publish, until

PLAIN = "plain"


def ours() -> list[threading.Thread]:
    names = ("idempotent-handler", "idempotent-loop")
    return [thread for thread in threading.enumerate() if thread.name.startswith(names)]


def test_what_became_of_each_message_is_the_same_as_with_plain_handlers(
    registry: Registry, broker: MemoryBroker
) -> None:
    effects: list[str] = []

    @registry.consumer(
        SUBJECT,
        checker=MemoryChecker(),
        retry_for=TimeoutError,
        idempotent_for=KeyError,
        backoff=Backoff(0.01),
    )
    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        if message.id == "harmless":
            raise KeyError
        if message.id == "fatal":
            raise ValueError("no such order")
        if message.id == "flaky" and "tried" not in effects:
            effects.append("tried")
            raise TimeoutError
        effects.append(str(message.id))

    publish(broker, "a", "b", "a", "harmless", "fatal", "flaky")
    broker.publish(Message(SUBJECT))
    seen: list[tuple[str | bytes | None, Outcome]] = []
    summary = emptying(registry, broker, on_result=lambda m, r: seen.append((m.id, r.outcome))).run()
    assert Counter(effects) == Counter(["a", "b", "tried", "flaky"])
    assert dict(summary.outcomes) == {
        Outcome.PROCESSED: 3,
        Outcome.DUPLICATE: 1,
        Outcome.IGNORED: 1,
        Outcome.DEAD: 1,
        Outcome.FAILED: 1,
        Outcome.REJECTED: 1,
    }
    assert summary.settled == len(seen) == 8
    assert {dead.message.id for dead in broker.dead_letters(SUBJECT)} == {"fatal", None}


@pytest.mark.parametrize("batch_size", [1, 50])
def test_each_of_2000_messages_has_one_effect_whatever_the_broker_does(
    registry: Registry, batch_size: int
) -> None:
    broker = MemoryBroker(seed=5, duplicate_rate=0.3, reorder_window=100, redeliver_rate=0.2)
    effects: Counter[str] = Counter()
    lock = threading.Lock()  # each worker has a loop of its own

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    async def handle(message: Message) -> None:
        await asyncio.sleep(0.001)
        with lock:
            effects[str(message.id)] += 1

    publish(broker, *range(2000))
    workers = [Running(emptying(registry, broker, concurrency=50, batch_size=batch_size)) for _ in range(2)]
    for _ in range(5):
        time.sleep(random.uniform(0.0, 0.02))
        broker.crash()
    for running in workers:
        running.join()
        assert running.error is None
    assert effects == Counter(map(str, range(2000)))
    assert not ours()


def test_five_thousand_messages_run_at_once_on_one_loop(registry: Registry, broker: MemoryBroker) -> None:
    running = most = 0
    loops = set()
    all_run = asyncio.Event()

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    async def handle(_message: Message) -> None:
        nonlocal running, most
        loops.add(asyncio.get_running_loop())
        running += 1
        most = max(most, running)
        if running == 5000:
            all_run.set()
        await all_run.wait()
        running -= 1

    publish(broker, *range(5000))
    worker = Running(emptying(registry, broker, concurrency=5000))
    assert worker.join().summary[Outcome.PROCESSED] == 5000
    assert (most, len(loops)) == (5000, 1)


def test_no_more_tasks_run_at_once_than_the_worker_and_the_consumer_allow(
    registry: Registry, broker: MemoryBroker
) -> None:
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def handle(message: Message) -> None:
        for name in (message.subject, "all"):
            running[name] += 1
            most[name] = max(most[name], running[name])
        await asyncio.sleep(0.005)
        running.subtract([message.subject, "all"])

    registry.consumer("narrow", checker=MemoryChecker(), concurrency=2)(handle)
    registry.consumer("wide", checker=MemoryChecker())(handle)
    publish(broker, *range(60), subject="narrow")
    publish(broker, *range(60), subject="wide")
    assert emptying(registry, broker, concurrency=7).run()[Outcome.PROCESSED] == 120
    assert (most["narrow"], most["all"]) == (2, 7)


def test_a_consumer_with_one_task_keeps_the_order(registry: Registry, broker: MemoryBroker) -> None:
    ended: list[int] = []

    @registry.consumer(SUBJECT, checker=MemoryChecker(), concurrency=1)
    async def handle(message: Message) -> None:
        await asyncio.sleep(random.uniform(0.0, 0.003))
        ended.append(int(str(message.id)))

    publish(broker, *range(300))
    emptying(registry, broker, concurrency=100).run()
    assert ended == list(range(300))


def test_plain_and_async_consumers_share_a_worker_and_do_not_wait_for_each_other(
    registry: Registry, broker: MemoryBroker
) -> None:
    go = threading.Event()
    done: list[str] = []

    @registry.consumer(PLAIN, checker=MemoryChecker(), concurrency=2)
    def block(message: Message) -> None:
        assert go.wait(WAIT_S)
        done.append(threading.current_thread().name)

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    async def handle(_message: Message) -> None:
        done.append(threading.current_thread().name)

    publish(broker, *range(30), subject=PLAIN)
    running = Running(emptying(registry, broker, concurrency=8))
    until(lambda: broker._queues[PLAIN].unsettled)
    publish(broker, *range(30))
    until(lambda: len(done) == 30)
    assert set(done) == {"idempotent-loop"}
    assert sorted(thread.name for thread in ours()) == [
        "idempotent-handler-0",
        "idempotent-handler-1",
        "idempotent-loop",
        "idempotent-loop-watch",
    ]
    go.set()
    assert running.join().summary[Outcome.PROCESSED] == 60
    assert not ours()


def test_only_async_consumers_start_no_handler_thread_and_only_plain_ones_no_loop(
    broker: MemoryBroker,
) -> None:
    async def awaited(_message: Message) -> None:
        seen.extend(thread.name.rstrip("0123456789") for thread in ours())

    def plain(_message: Message) -> None:
        seen.extend(thread.name.rstrip("0123456789") for thread in ours())

    expected = {awaited: {"idempotent-loop", "idempotent-loop-watch"}, plain: {"idempotent-handler-"}}
    for handler, threads in expected.items():
        seen: list[str] = []
        registry = Registry()
        registry.consumer(SUBJECT, checker=MemoryChecker())(handler)
        publish(broker, "a")
        emptying(registry, broker, concurrency=3).run()
        assert set(seen) == threads
        assert not ours()


def test_a_worker_whose_loop_cannot_be_made_says_why_and_ends(
    registry: Registry, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    async def handle(_message: Message) -> None: ...

    monkeypatch.setattr(asyncio.events, "new_event_loop", refuse)
    running = Running(emptying(registry, broker))
    running.thread.join(10)
    assert str(running.error) == "[Errno 24] Too many open files"
    assert not ours()


def test_one_thread_owns_the_adapter_and_acks_follow_the_effect_on_record(
    registry: Registry, broker: MemoryBroker
) -> None:
    adapter = Recording(broker)

    class Noting(MemoryChecker):
        def _complete(self, completion):
            done = super()._complete(completion)
            adapter.events.append(f"done {completion.claim.key.text.rpartition(':')[2]}")
            return done

    @registry.consumer(SUBJECT, checker=Noting())
    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        adapter.events.append(f"run {message.id}")

    publish(broker, *range(50))
    Worker(registry, adapter, concurrency=4).run()
    assert adapter.threads == {threading.current_thread()}
    for number in range(50):
        order = [adapter.events.index(f"{what} {number}") for what in ("run", "done", "ack")]
        assert order == sorted(order)


def test_results_that_arrive_together_wake_the_adapter_once(registry: Registry, broker: MemoryBroker) -> None:
    class Counting(MemoryAdapter):
        wakes = 0

        def wake(self) -> None:
            self.wakes += 1
            super().wake()

    begun = 0
    gate = asyncio.Event()

    @registry.consumer(SUBJECT, checker=MemoryChecker())
    async def handle(_message: Message) -> None:
        nonlocal begun
        begun += 1
        if begun == 200:
            gate.set()
        await gate.wait()

    publish(broker, *range(200))
    adapter = Counting(broker, until_empty=True)
    assert Worker(registry, adapter, concurrency=200).run()[Outcome.PROCESSED] == 200
    assert adapter.wakes <= 3
