"""A worker that stops while its store has not recorded what happened."""

import threading

from idempotent import Message, Outcome, Registry, Worker
from idempotent.adapters import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.claims import Claim, ClaimRequest, Failure, Released, Verdict
from idempotent.errors import StoreUnavailableError
from idempotent.keys import KeySpace
from tests.support.hooks import answering, unreachable
from tests.worker.running import SUBJECT, Running, emptying, publish, until

KEY = KeySpace(SUBJECT, "default").key("a")


def failing(message: Message) -> None:
    raise ValueError(message.id)


def test_a_completion_is_recorded_while_the_worker_drains(registry: Registry, broker: MemoryBroker) -> None:
    checker, ran = MemoryChecker(), []
    registry.consumer(SUBJECT, checker=checker)(ran.append)
    publish(broker, "a")
    worker = Worker(registry, MemoryAdapter(broker), gc_interval_s=None)
    with answering(checker, _complete=unreachable):
        running = Running(worker)
        until(lambda: checker.protocol.unrecorded)
        worker.stop()
        running.thread.join(0.2)
        assert running.thread.is_alive(), "it waits for the store"
    summary = running.join().summary
    assert (summary.unrecorded, summary.requeued, broker.backlog(SUBJECT)) == (0, 1, 1)
    assert checker._claim(ClaimRequest(KEY)).verdict is Verdict.DUPLICATE
    assert emptying(registry, broker).run().outcomes == {Outcome.DUPLICATE: 1}
    assert len(ran) == 1


def test_a_worker_says_what_the_store_never_recorded(
    registry: Registry, broker: MemoryBroker, caplog
) -> None:
    checker = MemoryChecker()
    registry.consumer(SUBJECT, checker=checker)(lambda _: None)
    publish(broker, "a")
    worker = Worker(registry, MemoryAdapter(broker), drain_timeout_s=0.2, gc_interval_s=None)
    with answering(checker, _complete=unreachable):
        running = Running(worker)
        until(lambda: checker.protocol.unrecorded)
        worker.stop()
        summary = running.join().summary
        assert (summary.unrecorded, summary.requeued) == (1, 1)
        assert "completions_not_recorded" in caplog.text
    checker.close()


def test_a_release_that_was_never_recorded_is_called_no_effect(
    registry: Registry, broker: MemoryBroker, caplog
) -> None:
    checker = MemoryChecker()
    registry.consumer(SUBJECT, checker=checker)(failing)
    publish(broker, "a")
    worker = Worker(registry, MemoryAdapter(broker), drain_timeout_s=0.2, gc_interval_s=None)
    with answering(checker, _release=unreachable):
        running = Running(worker)
        until(lambda: checker.protocol.unrecorded)
        worker.stop()
        left = (
            running.join().summary.unrecorded
        )  # the store watch may have met the outage, too, with its own key
    (line,) = [each for each in caplog.records if "s_not_recorded" in each.getMessage()]
    assert (vars(line)["event"], vars(line)["keys"]) == ("releases_not_recorded", left)
    assert "had no effect" in vars(line)["hint"]
    checker.close()


def test_a_store_that_never_comes_back_does_not_keep_an_impatient_worker(
    registry: Registry, broker: MemoryBroker
) -> None:
    checker = MemoryChecker()
    registry.consumer(SUBJECT, checker=checker)(lambda _: None)
    publish(broker, "a")
    worker = Worker(registry, MemoryAdapter(broker), gc_interval_s=None)
    with answering(checker, _complete=unreachable):
        running = Running(worker)
        until(lambda: checker.protocol.unrecorded)
        worker._on_signal()
        worker._on_signal()
        assert running.join().summary.unrecorded == 1
    checker.close()


def test_a_failed_release_is_recorded_while_the_worker_drains(
    registry: Registry, broker: MemoryBroker
) -> None:
    checker = MemoryChecker()
    registry.consumer(SUBJECT, checker=checker)(failing)
    publish(broker, "a")
    tried = threading.Event()

    release = checker._release

    def unreachable_once(claim: Claim, failure: Failure | None) -> Released:
        if claim.key != KEY:  # the worker's own trial
            return release(claim, failure)
        tried.set()
        raise StoreUnavailableError("unreachable")

    worker = Worker(registry, MemoryAdapter(broker), gc_interval_s=None)
    with answering(checker, _release=unreachable_once):
        running = Running(worker)
        until(tried.is_set)
        worker.stop()
    assert running.join().summary.unrecorded == 0
    record = checker.admin().get(KEY)
    assert record is not None
    assert record.held, "nobody has the key"
    assert checker.attempts[KEY.hash].count == 1
