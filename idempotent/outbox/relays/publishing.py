"""Publishing: sends messages of an outbox to their broker, and tells which were taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from idempotent.errors import AdapterError, PublishError, described
from idempotent.message import Message
from idempotent.outbox.relays.condition import Condition, Doing
from idempotent.outbox.store import Waiting
from idempotent.policy import Backoff

if TYPE_CHECKING:
    from idempotent.adapters.base import Adapter

# After a failure so many messages are sent one by one, so that one that makes the broker hang up is found.
_CAREFUL: Final = 20
_SUSPICIOUS: Final = 3
# A broker that refuses the connection is asked again after it: more often, and it may lock the account.
_REFUSED_S: Final = 5.0
_ANSWER_S: Final = 1.0
_PAUSES: Final = Backoff(initial_s=0.2, maximum_s=15.0)


@dataclass(slots=True)
class Published:
    """What became of a batch.

    Attributes:
        accepted: what the broker has confirmed.
        refused: what it refused, with its reasons.
        answered: whether it answered about all. The others are sent again.
    """

    accepted: list[Waiting] = field(default_factory=list)
    refused: list[tuple[Waiting, str]] = field(default_factory=list)
    answered: bool = True


class Publishing:
    """Owns the adapter of a destination, in its thread.

    Args:
        adapter: for the broker.
        condition: is told when the thread waits for the broker, and why the broker does not answer.
        tell: is told how many messages of a batch were confirmed, and how many refused.
    """

    def __init__(self, adapter: Adapter, condition: Condition, tell: Callable[[int, int], object]) -> None:
        self._adapter = adapter
        self._condition = condition
        self._tell = tell
        self._is_open = self._is_fenced = False
        self._failures = 0
        self._not_before = 0.0
        self._careful = 0
        # How many messages the broker has taken; and of messages that it did not answer about: how often, and how many
        # others it had taken then.
        self._taken = 0
        self._suspects: dict[int, tuple[int, int]] = {}

    @property
    def has_fences(self) -> bool:
        """Whether no message may be published again after one that follows it."""
        return self._adapter.fences is not None

    @property
    def is_ready(self) -> bool:
        """Whether to read and publish now: the broker has not just failed, and its fences are held if it has any."""
        return self._is_due and (self._is_fenced or not self.has_fences)

    @property
    def connected(self) -> bool:
        """Whether the broker took the last batch, and the adapter is connected, for readiness probes."""
        return not self._failures and self._is_open and self._adapter.connected

    @property
    def lost(self) -> bool:
        """Whether the adapter has lost its broker, and says so itself."""
        return self._is_open and not self._adapter.connected

    def open(self) -> None:
        """Open the adapter.

        Raises:
            AdapterError: the broker refuses the connection.
        """
        try:
            self._open()
            if not self._adapter.connected:
                self._adapter.receive(1, _ANSWER_S)  # it may learn only now that the broker refuses it
        except BaseException:
            self.close()
            raise

    def fence(self, buckets: Collection[int]) -> None:
        """Take the fences of these buckets, if the broker has any. What is read after that may be published."""
        fences = self._adapter.fences
        if fences is not None and self._ask(lambda: fences.take(buckets)):
            self._is_fenced = True

    def keep_alive(self) -> None:
        """Let the adapter exchange heart-beats with its broker, without waiting, and open it if it is closed."""
        self._ask(lambda: self._adapter.receive(1, 0.0))

    def publish(self, messages: Sequence[Waiting]) -> Published:
        """Send a batch. After a broker's failure nothing is sent until its pause has ended."""
        published = Published()
        if messages and self.is_ready:
            with self._condition.doing(Doing.BROKER):
                self._publish(messages, published)
            self._tell(len(published.accepted), len(published.refused))
        return published

    def close(self) -> None:
        """Close the adapter. Never raises."""
        was_open, self._is_open, self._is_fenced = self._is_open, False, False
        if was_open:
            with suppress(AdapterError):
                self._adapter.close()

    def _publish(self, messages: Sequence[Waiting], published: Published) -> None:
        if not self._careful:
            self._publish_together(messages, published)
            return
        for each in sorted(messages, key=lambda one: self._suspects.get(one.number, (0, 0))[0]):
            self._publish_together([each], published)
            # A refusal costs the bucket its fence, and what was read under it must be read again.
            if not published.answered or (published.refused and self._is_fenced):
                return
            self._careful = max(self._careful - 1, 0)

    def _publish_together(self, messages: Sequence[Waiting], published: Published) -> None:
        readable = [(each, message) for each in messages if (message := _read(each, published)) is not None]
        refused: Mapping[int, str] = {}
        unknown: Mapping[int, str] = {}
        try:
            if readable:
                self._open()
                self._send(readable)
        except PublishError as raised:
            refused, unknown = raised.refused, raised.unknown
            if unknown:
                self._condition.tell(raised)
        except Exception as raised:
            self._condition.tell(raised)
            unknown = dict.fromkeys(range(len(readable)), described(raised))
            self.close()
        published.answered = not unknown
        for place, (each, _) in enumerate(readable):
            if place in refused:
                published.refused.append((each, refused[place]))
            elif place not in unknown:
                published.accepted.append(each)
                self._taken += 1
                self._suspects.pop(each.number, None)
            elif len(readable) == 1:
                self._suspect(each, unknown[place], published)
        if published.answered:
            self._failures = 0
        else:
            self._careful = _CAREFUL
            self._failures += 1
            self._not_before = time.monotonic() + _PAUSES.delay_s(self._failures)

    def _send(self, messages: Sequence[tuple[Waiting, Message]]) -> None:
        outgoing = [message for _, message in messages]
        if self._adapter.fences is None:
            self._adapter.publish_many(outgoing)
        else:
            self._adapter.fences.publish(outgoing, [each.home for each, _ in messages])

    def _suspect(self, each: Waiting, reason: str, published: Published) -> None:
        """Refuse a message that the broker never answers about, although it takes others."""
        times, taken = self._suspects.get(each.number, (0, self._taken))
        self._suspects[each.number] = times + 1, taken
        if times + 1 >= _SUSPICIOUS and self._taken > taken:
            del self._suspects[each.number]
            why = f"no answer {times + 1} times, while the broker took other messages: {reason}"
            published.refused.append((each, why))

    @property
    def _is_due(self) -> bool:
        return time.monotonic() >= self._not_before

    def _open(self) -> None:
        if not self._is_open:
            self._adapter.open([])
            self._is_open = True

    def _ask(self, question: Callable[[], object]) -> bool:
        """Whether the broker answers. If not, the adapter is closed, and opened again later."""
        if not self._is_due:
            return False
        with self._condition.doing(Doing.BROKER):
            try:
                self._open()
                question()
            except Exception as raised:
                self.close()
                self._not_before = time.monotonic() + _REFUSED_S
                self._condition.tell(raised)
                return False
        return True


def _read(each: Waiting, published: Published) -> Message | None:
    try:
        return Message(
            each.subject, each.body, id=each.message_id, headers=each.header_values(), key=each.order_key
        )
    except (ArithmeticError, ValueError, TypeError, RecursionError) as error:
        published.refused.append((each, f"the row cannot be read: {described(error)}"))
        return None
