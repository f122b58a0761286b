"""`make flood`: malformed messages by the hundred thousand through each broker, and good ones between them.

`python -m tests.malformed.flood --broker kafka --malformed 1000` for one broker, and fewer.
"""

from __future__ import annotations

import logging
import random
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console

from examples.demo.stage.leftovers import left_over, letters
from examples.demo.stage.places import Place, place_at
from idempotent import Message, Registry, Worker
from idempotent.adapters.base import Adapter
from idempotent.checkers import MemoryChecker
from tests.malformed.messages import malformed
from tests.support.pairs import BROKERS

GROUP = "flood"
_BATCH = 500
_GOOD_EVERY = 10
_STALLED_S = 60.0
_SHOWN = 5


class Flood:
    """One broker's."""

    def __init__(self, place: Place, count: int) -> None:
        self.bad = {str(number) for number in range(count)}
        self.good = {f"good-{number}" for number in range(count // _GOOD_EVERY)}
        self.seen: Counter[str] = Counter()
        self._place = place
        self._registry = Registry()
        consume = self._registry.consumer(
            place.subject, group=GROUP, checker=MemoryChecker(), retry_for=(OSError,)
        )
        consume(self._handle)

    def run(self, on_tick: Callable[[int], object]) -> dict[str, list[str]]:
        """Send and consume. What is wrong, by its name."""
        settled = 0

        def count(*_: object) -> None:
            nonlocal settled
            settled += 1

        adapter = self._place.adapter()
        worker = Worker(self._registry, adapter, batch_size=_BATCH, gc_interval_s=None, on_result=count)
        thread = threading.Thread(target=worker.run)
        self._place.make()
        thread.start()
        try:
            self._send(lambda: on_tick(settled))
            before, since = settled, time.monotonic()
            while settled < len(self.bad) + len(self.good) and time.monotonic() - since < _STALLED_S:
                time.sleep(0.2)
                on_tick(settled)
                if settled != before:
                    before, since = settled, time.monotonic()
        finally:
            worker.stop()
            thread.join()
        return self._look(adapter)

    def _look(self, adapter: Adapter) -> dict[str, list[str]]:
        """What the broker still has, against what was sent."""
        subject = adapter.dead_letter_subject(self._place.subject)
        assert subject is not None
        # By a header, which good ones do not have.
        dead = {
            letter.headers.get("which", str(letter.id)) for letter in letters(self._place.adapter(), subject)
        }
        left = left_over(self._place.adapter(), self._place.subject, GROUP, MemoryChecker())
        self._place.remove()
        return {
            "good ones lost": sorted(self.good - self.seen.keys()),
            "good ones twice": sorted(known_as for known_as, times in self.seen.items() if times > 1),
            "without a dead letter": sorted(self.bad - dead),
            "dead, and should not be": sorted(dead - self.bad),
            "left": [str(message.id) for message in left],
        }

    def _handle(self, message: Message) -> None:
        number = message.json()["n"] + 0
        self.seen[f"good-{number}"] += 1

    def _send(self, on_tick: Callable[[], object]) -> None:
        rng, subject = random.Random(11), self._place.subject
        sender = self._place.adapter()
        batch: list[Message] = []
        for number in range(len(self.bad)):
            batch.append(malformed(subject, number, rng))
            if number % _GOOD_EVERY == 0 and number // _GOOD_EVERY < len(self.good):
                good = number // _GOOD_EVERY
                batch.append(Message(subject, b'{"n": %d}' % good, id=f"good-{good}"))
            if len(batch) >= _BATCH:
                sender.publish_many(batch)
                batch = []
                on_tick()
        sender.publish_many(batch)
        sender.close()


def main(
    broker: Annotated[str, typer.Option(help=f"One of {', '.join(BROKERS)}; none: each.")] = "",
    count: Annotated[
        int, typer.Option("--malformed", min=1, help="Malformed messages, for each broker.")
    ] = 100_000,
) -> None:
    """Let a worker meet them; each has to end as a dead letter, and each good one to run once."""
    console, wrong = Console(), False
    # A warning for each dead letter is no news here.
    logging.getLogger("idempotent").addHandler(logging.NullHandler())
    for name in [broker] if broker else BROKERS:
        if name not in BROKERS:
            sys.exit(f"no such broker: {name}. Known: {', '.join(BROKERS)}")
        server = BROKERS[name]()
        missing = server.missing()
        if missing:
            sys.exit(f"{server.name} cannot be started here: {missing}")
        try:
            server.start()
            url = server.url if "://" in server.url else f"kafka://{server.url}"
            began = time.monotonic()
            flood = Flood(place_at(url, f"flood_{secrets.token_hex(4)}", _BATCH), count)
            with console.status(f"{server.name}: starting") as status:
                found = flood.run(lambda done, of=server.name: status.update(f"{of}: {done:,} settled"))
        finally:
            server.close()
        bad = {what: ids for what, ids in found.items() if ids}
        wrong = wrong or bool(bad)
        console.print(
            f"{server.name}: {count:,} malformed, {len(flood.good):,} good, {time.monotonic() - began:.0f} s: "
            + (
                "; ".join(f"{what}: {len(ids):,} {ids[:_SHOWN]}" for what, ids in bad.items())
                or "all as it should be"
            ),
            soft_wrap=True,
        )
    sys.exit(wrong)


if __name__ == "__main__":
    typer.run(main)
