"""Producer: sends messages, some of them twice on purpose, and again what is perhaps lost."""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from idempotent.adapters.base import Adapter
from idempotent.errors import AdapterError
from idempotent.message import Message
from idempotent.torture.messages import Behaviour, behaviour_of, message_of
from idempotent.torture.settings import Settings

_MOST_TOGETHER: Final = 20
_LATEST_COPY: Final = 400
_AGAIN_S: Final = 0.2


class Producer:
    """A thread that sends, until it is told to finish.

    Args:
        make_adapter: of the broker; called again after each failure.
        subject: where to.
        settings: how much.
        resends: whether messages are sent twice on purpose.
        unfinished: how many messages are sent and not processed.
    """

    def __init__(
        self,
        make_adapter: Callable[[], Adapter],
        subject: str,
        settings: Settings,
        *,
        resends: bool,
        unfinished: Callable[[], int],
    ) -> None:
        """Send from `start` on."""
        self.confirmed = 0
        """Messages 0 to so many are with the broker."""
        self.begun = 0
        """Messages 0 to so many are perhaps there."""
        self.duplicates = 0
        self.sent_again = 0
        self.failures: list[str] = []
        self._make_adapter = make_adapter
        self._subject = subject
        self._settings = settings
        self._share = settings.duplicates if resends else 0.0
        self._unfinished = unfinished
        self._finishing = threading.Event()
        self._chance = random.Random(f"producer {settings.seed}")
        self._copies: list[tuple[int, int]] = []
        self._thread = threading.Thread(target=self._run, name="torture-producer", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def finish(self) -> None:
        """Begin no new message; send what is begun until the broker has it."""
        self._finishing.set()

    @property
    def finished(self) -> bool:
        """Whether the broker has everything."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        adapter: Adapter | None = None
        while batch := self._next():
            again = False
            while True:
                try:
                    adapter = adapter or self._make_adapter()
                    adapter.publish_many(batch)
                    break
                except AdapterError as error:
                    # Perhaps some of them arrived: that is what the consumer's checker is for.
                    again = True
                    self.failures.append(str(error))
                    if adapter is not None:
                        with suppress(AdapterError):
                            adapter.close()
                    adapter = None
                    time.sleep(_AGAIN_S)
            self.sent_again += len(batch) if again else 0
            self.confirmed = self.begun
        if adapter is not None:
            adapter.close()

    def _next(self) -> list[Message]:
        """What to send next; nothing at the end."""
        while not self._finishing.is_set() and self._unfinished() >= self._settings.backlog:
            time.sleep(0.02)
        numbers = []
        if not self._finishing.is_set():
            size = self._chance.randint(1, _MOST_TOGETHER)
            time.sleep(size / self._settings.rate_per_s)
            numbers = list(range(self.begun, self.begun + size))
            self.begun += size
            for number in numbers:
                if self._chance.random() < self._share:
                    heapq.heappush(self._copies, (number + self._chance.randint(0, _LATEST_COPY), number))
                elif self._share and behaviour_of(self._settings.seed, number) is not Behaviour.PLAIN:
                    # At once, so that somebody else wants the key of what takes long, or fails.
                    heapq.heappush(self._copies, (number, number))
        while self._copies and (self._finishing.is_set() or self._copies[0][0] < self.begun):
            numbers.append(heapq.heappop(self._copies)[1])
            self.duplicates += 1
        return [message_of(self._subject, self._settings.seed, number) for number in numbers]
