"""Messages that have to wait are held, within a bound, and none is lost."""

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest
from sqlalchemy.orm import Session

from idempotent import Backoff, Consumer, Message, Outcome, Registry, Worker
from idempotent.adapters import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.claims import ClaimRequest
from idempotent.errors import StoreUnavailableError
from tests.support.stores import Store
from tests.worker.running import SUBJECT, Running, emptying, publish, until


class Held(MemoryChecker):
    """Somebody else's claim, for as long as a test wants it."""

    def hold(self, consumer: Consumer, message_id: str) -> Callable[[], object]:
        claim = self.protocol.claim(ClaimRequest(consumer.key_of(message_id))).claim
        assert claim is not None
        return lambda: self.protocol.complete(claim)


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look again soon, not when the other's lease ends."""
    monkeypatch.setattr("idempotent.processing.results._LONGEST_WAIT_S", 0.02)
    monkeypatch.setattr("idempotent.processing.results._SHORTEST_WAIT_S", 0.02)


def test_a_message_in_progress_elsewhere_is_held_and_acked_once_the_other_is_done(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    broker = MemoryBroker(max_deliveries=2)  # contention must not use it up
    checker = Held()
    effects: list[str] = []
    consumer = registry.consumer(SUBJECT, checker=checker, max_attempts=1)(lambda m: effects.append(m.id))
    finish = checker.hold(consumer, "a")
    publish(broker, "a", "b")
    running = Running(emptying(registry, broker))
    until(lambda: effects == ["b"])
    time.sleep(1.0)  # some fifty looks
    assert broker.backlog(SUBJECT) == 1, "it must not be acknowledged while its effect is not certain"
    finish()
    summary = running.join().summary
    assert effects == ["b"]
    assert dict(summary.outcomes) == {Outcome.PROCESSED: 1, Outcome.DUPLICATE: 1}
    assert summary.requeued == 1
    assert not broker.dead_letters(SUBJECT)
    assert not checker.attempts


def test_held_deliveries_bound_what_is_received(
    registry: Registry, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    checker = Held()
    consumer = registry.consumer(SUBJECT, checker=checker)(lambda _: None)
    finishes = [checker.hold(consumer, str(number)) for number in range(100)]
    publish(broker, *range(100))
    adapter = MemoryAdapter(broker, until_empty=True)
    running = Running(Worker(registry, adapter, max_held=10))
    time.sleep(0.5)
    with broker._changed:
        assert broker._queues[SUBJECT].unsettled <= 12
    for finish in finishes:
        finish()
    assert running.join().summary[Outcome.DUPLICATE] == 100


def test_a_store_that_is_down_costs_no_message_and_no_attempt(
    registry: Registry, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idempotent.processing.results.STORE_RETRY_S", 0.02)

    class Flaky(MemoryChecker):
        down = True

        def _claim(self, request: ClaimRequest):
            if self.down:
                raise StoreUnavailableError("connection refused")
            return super()._claim(request)

    checker = Flaky()
    registry.consumer(SUBJECT, checker=checker, max_attempts=1)(lambda _: None)
    publish(broker, *range(20))
    running = Running(emptying(registry, broker))
    time.sleep(0.3)
    assert broker.backlog(SUBJECT) == 20
    checker.down = False
    assert running.join().summary[Outcome.PROCESSED] == 20


def test_copies_of_a_failed_message_are_held_until_its_retry_is_due(
    registry: Registry, broker: MemoryBroker
) -> None:
    ran: list[float] = []

    def fail_once(_: Message) -> None:
        ran.append(time.monotonic())
        if len(ran) == 1:
            raise ConnectionError("away")

    registry.consumer(SUBJECT, checker=MemoryChecker(), max_attempts=2, backoff=Backoff(initial_s=1.0))(
        fail_once
    )
    publish(broker, "a", "a", "a")
    summary = Running(emptying(registry, broker, concurrency=3)).join().summary
    assert dict(summary.outcomes) == {Outcome.FAILED: 1, Outcome.PROCESSED: 1, Outcome.DUPLICATE: 2}
    assert len(ran) == 2
    assert ran[1] - ran[0] > 0.9
    assert not broker.dead_letters(SUBJECT)


def test_copies_that_wait_for_a_long_backoff_take_no_place_from_others(
    registry: Registry, broker: MemoryBroker
) -> None:
    ran: Counter[str] = Counter()

    def refuse(message: Message) -> None:
        ran[str(message.id)] += 1
        if message.id == "bad":
            raise ConnectionError("away")

    registry.consumer(SUBJECT, checker=MemoryChecker(), backoff=Backoff(3600.0, 3600.0))(refuse)
    publish(broker, *["bad"] * 50, *range(20))
    outcomes: Counter[Outcome] = Counter()
    worker = Worker(
        registry,
        MemoryAdapter(broker),
        max_held=5,
        concurrency=2,
        gc_interval_s=None,
        on_result=lambda _, result: outcomes.update([result.outcome]),
    )
    running = Running(worker)
    until(lambda: len(ran) == 21)
    until(lambda: outcomes[Outcome.IN_PROGRESS] == 49)
    until(lambda: broker.backlog(SUBJECT) == 50)  # the last handlers have begun, and end soon
    running.worker.stop()
    summary = running.join().summary
    assert ran["bad"] == 1
    assert summary[Outcome.FAILED] == 1
    assert summary[Outcome.IN_PROGRESS] == 49
    assert not broker.dead_letters(SUBJECT)


@pytest.mark.parametrize("kind", ["leased", "transactional"])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
def test_copies_of_a_hot_key_take_no_place_from_other_messages(
    registry: Registry, broker: MemoryBroker, shared_store: Store, kind: str, elsewhere: bool
) -> None:
    """The hot handler ends only when the others have run."""
    if shared_store.kind == "redis" and kind == "transactional":
        pytest.skip("has no transactions")
    if shared_store.kind == "sqlite" and kind == "transactional":
        pytest.skip("one writer: its handlers run one at a time")
    others, effects = threading.Event(), []

    def handle(message: Message) -> None:
        if message.id == "hot":
            assert others.wait(60), "the others did not run"
        effects.append(message.id)
        if {f"other-{number}" for number in range(8)} <= {*effects}:
            others.set()

    def consumer_in(registry: Registry) -> Consumer:
        decorate = registry.consumer(SUBJECT, checker=getattr(shared_store, kind)())
        if kind == "leased":
            return decorate(handle)
        return decorate(takes_session(handle))

    consumer_in(registry)
    copies = [Message(SUBJECT, id="hot") for _ in range(10)]
    thread = None
    if elsewhere:
        thread = threading.Thread(target=consumer_in(Registry()).process, args=(copies.pop(),))
        thread.start()
        time.sleep(0.5)
    for message in [*copies, *(Message(SUBJECT, id=f"other-{number}") for number in range(8))]:
        broker.publish(message)
    running = Running(emptying(registry, broker, concurrency=4))
    assert others.wait(60), "copies of the hot key keep all places"
    running.join()
    if thread is not None:
        thread.join(60)
    assert sorted(effects) == ["hot", *(f"other-{number}" for number in range(8))]


def takes_session(handle: Callable[[Message], None]) -> Callable[[Message, Session], None]:
    def handler(message: Message, session: Session) -> None:
        handle(message)

    return handler
