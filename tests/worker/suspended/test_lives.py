"""Single messages of many threads: how many run at once, in which order, and with what results."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from idempotent import Backoff, Message, Outcome, Registry
from idempotent.adapters import MemoryBroker
from idempotent.observe import Observer
from tests.support.hooks import answering
from tests.support.stores import Store
from tests.worker.running import SUBJECT, WAIT_S, Running, emptying, publish, until
from tests.worker.suspended.stage import Crowd, Gate, completions_wait


def test_each_of_1000_keys_has_one_effect_whatever_the_broker_does(shared_store: Store) -> None:
    broker = MemoryBroker(seed=7, duplicate_rate=0.3, reorder_window=100, redeliver_rate=0.2)
    crowds = [Crowd(shared_store.leased(), broker) for _ in range(2)]
    publish(broker, *range(1000))
    running = [crowd.run(64) for crowd in crowds]
    time.sleep(0.05)
    broker.crash()
    for each in running:
        assert each.join().error is None
    assert crowds[0].effects + crowds[1].effects == Counter(map(str, range(1000)))
    assert broker.backlog(SUBJECT) == 0


def test_what_became_of_each_message_is_the_same_as_one_at_a_time(
    shared_store: Store, broker: MemoryBroker
) -> None:
    counted: Counter[str] = Counter()
    shown: Counter[str] = Counter()
    ran: list[str] = []

    class Watching(Observer):
        def counted(self, consumer: str, what: object, count: int) -> None:
            counted[str(what)] += count

        def processed(self, consumer: str, messages: object, results: object) -> None:
            shown.update(str(result.outcome) for result in results)  # type: ignore[attr-defined]

    registry = Registry(observers=[Watching()])

    @registry.consumer(
        SUBJECT,
        checker=shared_store.leased(),
        retry_for=TimeoutError,
        idempotent_for=KeyError,
        backoff=Backoff(0.01),
        store_result=True,
    )
    def handle(message: Message) -> str:
        kind = str(message.id).partition(" ")[0]
        if kind == "harmless":
            raise KeyError
        if kind == "fatal":
            raise ValueError("no such order")
        if kind == "flaky" and str(message.id) not in ran:
            ran.append(str(message.id))
            raise TimeoutError
        ran.append(str(message.id))
        return kind

    kinds = ("plain", "harmless", "fatal", "flaky")
    ids = [f"{kind} {number}" for kind in kinds for number in range(25)]
    publish(broker, *ids)
    for _ in range(5):
        broker.publish(Message(SUBJECT))
    first = emptying(registry, broker, concurrency=16).run()
    publish(broker, *ids[:25])
    values: list[object] = []
    again = emptying(registry, broker, concurrency=16, on_result=lambda _, r: values.append(r.value)).run()
    expected = {
        Outcome.PROCESSED: 50,
        Outcome.IGNORED: 25,
        Outcome.DEAD: 25,
        Outcome.FAILED: 25,
        Outcome.REJECTED: 5,
    }
    assert dict(first.outcomes) == expected
    assert dict(again.outcomes) == {Outcome.DUPLICATE: 25}
    assert values == ["plain"] * 25
    final = {str(outcome): count for outcome, count in (expected | dict(again.outcomes)).items()}
    shown.pop(str(Outcome.IN_PROGRESS), None)
    assert shown == Counter(final)
    assert {what: counted[what] for what in final} == final


def test_as_many_handlers_run_at_once_as_allowed_and_no_more(
    shared_store: Store, broker: MemoryBroker
) -> None:
    registry, lock = Registry(), threading.Lock()
    running = most = 0
    all_run = threading.Barrier(12)

    @registry.consumer(SUBJECT, checker=shared_store.leased())
    def handle(message: Message) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        if int(str(message.id)) < 12:
            all_run.wait(WAIT_S)
        time.sleep(0.001)
        with lock:
            running -= 1

    publish(broker, *range(200))
    assert emptying(registry, broker, concurrency=12).run()[Outcome.PROCESSED] == 200
    assert most == 12


def test_a_consumer_of_one_handler_starts_when_the_last_message_is_recorded(
    shared_store: Store, broker: MemoryBroker
) -> None:
    registry, checker = Registry(), shared_store.leased()
    events: list[str] = []

    @registry.consumer(SUBJECT, checker=checker, concurrency=1)
    def handle(message: Message) -> None:
        events.append(f"run {message.id}")

    @registry.consumer("others", checker=checker)
    def other(message: Message) -> None:
        time.sleep(0.001)

    def key(completion) -> None:  # type: ignore[no-untyped-def]
        assert completion.claim.key is not None
        ours = [number for number in range(100) if handle.key_of(str(number)) == completion.claim.key]
        events.extend(f"record {number}" for number in ours)

    def one(completion):  # type: ignore[no-untyped-def]
        answer = checker._complete(completion)
        key(completion)
        return answer

    def many(completions):  # type: ignore[no-untyped-def]
        answers = checker._complete_many(completions)
        for completion in completions:
            key(completion)
        return answers

    publish(broker, *range(100))
    publish(broker, *range(300), subject="others")
    with answering(checker, _complete=one, _complete_many=many):
        assert emptying(registry, broker, concurrency=8).run()[Outcome.PROCESSED] == 400
    assert events == [event for number in range(100) for event in (f"run {number}", f"record {number}")]


def test_a_recorded_message_is_settled_while_all_handlers_are_busy(
    shared_store: Store, broker: MemoryBroker
) -> None:
    crowd = Crowd(shared_store.leased(), broker)
    slow, quick = Gate(), Gate()
    crowd.gates = {"slow": slow, "quick": quick, "later 1": slow, "later 2": slow}
    publish(broker, "slow", "quick", "first", "later 1", "later 2")
    with completions_wait(crowd.checker) as completing:
        running = crowd.run(3)
        slow.until("slow")
        quick.until("quick")
        # "first" is on its way to the store. "quick" waits for the round after the claims of the last two.
        completing.until("")
        quick.open()
        until(lambda: crowd.checker.combiner.waiting == 3)  # type: ignore[attr-defined]
    slow.until("slow", "later 1", "later 2")
    until(lambda: set(crowd.settled) == {"first", "quick"})
    slow.open()
    assert running.join().summary[Outcome.PROCESSED] == 5


def test_a_message_alone_is_sent_at_once_and_alone(shared_store: Store, broker: MemoryBroker) -> None:
    crowd = Crowd(shared_store.leased(), broker)
    threads: set[str] = set()

    def claim(request):  # type: ignore[no-untyped-def]
        threads.add(threading.current_thread().name)
        return crowd.checker._claim(request)

    def complete(completion):  # type: ignore[no-untyped-def]
        threads.add(threading.current_thread().name)
        return crowd.checker._complete(completion)

    with answering(crowd.checker, _claim=claim, _complete=complete):
        for number in range(5):
            publish(broker, number)
            assert crowd.run(8).join().summary[Outcome.PROCESSED] == 1
    threads.discard("idempotent-stores")  # asks whether the store can be used
    assert not {name for name in threads if not name.startswith("idempotent-handler")}


@pytest.mark.parametrize("concurrency", [1, 2])
def test_few_threads_process_all(shared_store: Store, broker: MemoryBroker, concurrency: int) -> None:
    crowd = Crowd(shared_store.leased(), broker)
    publish(broker, *range(100))
    assert crowd.run(concurrency).join().summary[Outcome.PROCESSED] == 100
    assert not [each for each in threading.enumerate() if each.name.startswith("idempotent-handler")]


def test_workers_share_the_rounds_of_one_checker_with_other_threads(
    shared_store: Store, broker: MemoryBroker
) -> None:
    crowd = Crowd(shared_store.leased(), broker)
    publish(broker, *range(300))
    running: list[Running] = [crowd.run(8), crowd.run(8)]
    for number in range(300, 400):
        assert crowd.consumer.process(Message(SUBJECT, id=str(number))).outcome is Outcome.PROCESSED
    for each in running:
        each.join()
    assert crowd.effects == Counter(map(str, range(400)))
