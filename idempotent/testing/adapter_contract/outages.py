"""The contract of lost connections."""

from __future__ import annotations

import threading
import time

from idempotent.adapters.base import Adapter
from idempotent.checkers import MemoryChecker
from idempotent.message import Message
from idempotent.registry import Registry
from idempotent.testing.adapter_contract.base import ACK, DEADLINE_S, AdapterContractBase, until
from idempotent.worker import Worker


class OutagesContract(AdapterContractBase):
    """A lost connection loses no message."""

    def test_after_a_lost_connection_everything_unsettled_comes_again_and_old_answers_are_dropped(
        self,
    ) -> None:
        subject = self.subject()
        adapter = self.opened(subject)
        for number in range(3):
            self.send(self.message(subject, f"m-{number}"))
        old = self.receive(adapter, 3)
        self.cut(adapter)
        new = self.receive(adapter, 3)
        assert sorted(str(d.message.id) for d in new) == ["m-0", "m-1", "m-2"]
        for delivery in old:
            adapter.settle(delivery, ACK)
        assert adapter.stale_settlements == 3
        for delivery in new:
            adapter.settle(delivery, ACK)
        self.nothing_comes(adapter)

    def test_a_worker_survives_lost_connections_and_each_effect_happens_once(self) -> None:
        subject = self.subject()
        adapter = self.make_adapter()
        done: list[str] = []
        registry = Registry()

        @registry.consumer(subject, group="contract", checker=MemoryChecker(lease_s=5.0))
        def handle(message: Message) -> None:
            time.sleep(0.002)
            done.append(str(message.id))

        worker = Worker(registry, adapter, concurrency=4, batch_size=3, gc_interval_s=None)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            for number in range(100):
                self.send(self.message(subject, f"m-{number}"))
                if number in (30, 60):
                    self.cut_after(number // 2, done, adapter)
            until(lambda: len(done) >= 100, "a hundred effects")
            time.sleep(0.3)
        finally:
            worker.stop()
            thread.join(DEADLINE_S)
        assert sorted(done) == sorted(f"m-{number}" for number in range(100))

    def cut_after(self, effects: int, done: list[str], adapter: Adapter) -> None:
        until(lambda: len(done) >= effects, "the effects before a lost connection")
        self.cut(adapter)
