"""A worker whose handlers are tasks: two hundred wait for another service at once, in one thread."""

import asyncio
import time

from idempotent import Message, Outcome, Registry, Worker, current_claim
from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker

registry = Registry()
sent: dict[str, str] = {}


@registry.consumer("mail", group="smtp", checker=MemoryChecker(), handler_timeout_s=30)
async def send(message: Message) -> None:
    await asyncio.sleep(0.2)  # the mail server takes its time
    claim = current_claim()
    assert claim.key is not None, "a message without an id never gets here"
    sent[claim.key.token] = str(message.id)


broker = MemoryBroker(seed=7, duplicate_rate=0.3, reorder_window=5)
for mail in range(1_000):
    broker.publish(Message("mail", b"hello", id=f"mail-{mail}"))
began = time.monotonic()
summary = Worker(registry, MemoryAdapter(broker, until_empty=True), concurrency=200).run()
print(summary)
print(f"200 s of waiting took {time.monotonic() - began:.1f} s")
assert summary[Outcome.PROCESSED] == len(sent) == 1_000
