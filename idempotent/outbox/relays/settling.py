"""What becomes of messages that a relay has tried to publish: Deletions of those accepted, Holds on those refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Final

from idempotent.checkers.side_calls import SideThreads
from idempotent.logs import EventLog
from idempotent.observe.log_lines import LogThrottle
from idempotent.outbox.entries import lane_of
from idempotent.outbox.store import Hold, OutboxStore, Refusal, Waiting
from idempotent.policy import Backoff

log = EventLog(__name__)

# The most held lanes that are tried in one step: what is not held must not wait for all of them.
_AT_ONCE: Final = 100


class Holds:
    """Sets lanes aside whose message was refused, and says when to try them again.

    Args:
        store: the outbox.
        destination: the name of the broker.
        backoff: after how long a refused message is tried again.
        skips: hold a refused message alone; False: with it all later ones of its order key.
    """

    def __init__(self, store: OutboxStore, destination: str, backoff: Backoff, *, skips: bool) -> None:
        self._store = store
        self._destination: Final = destination
        self._backoff = backoff
        self._skips = skips
        self._told = LogThrottle()

    def without_held(self, messages: Sequence[Waiting]) -> list[Waiting]:
        """Those that may be published. The others are set aside."""
        if not messages:
            return []
        # Asked first: the lanes of a batch take longer, by some microseconds for each message.
        if not self._store.has_holds({each.bucket for each in messages}):
            return list(messages)
        held = self._store.held(sorted({each.lane for each in messages}))
        aside = [each for each in messages if each.lane in held]
        if aside:
            self._store.set_aside(aside)
        return [each for each in messages if each.lane not in held]

    def hold(self, refused: Sequence[tuple[Waiting, str]]) -> None:
        """Set refused messages aside, each with the others of its lane."""
        if not refused:
            return
        lanes = [self._lane(message) for message, _ in refused]
        before = self._store.held(sorted(set(lanes)))
        refusals = []
        for (message, reason), lane in zip(refused, lanes, strict=True):
            attempts, first = before.get(lane, (0, 0))
            attempts = attempts + 1 if first == message.number else 1
            delay_us = round(self._backoff.delay_s(attempts) * 1_000_000)
            refusals.append(Refusal(message, reason, lane, attempts, delay_us))
        self._store.hold(refusals)
        for each in refusals:
            self._tell(each)

    def due(self, buckets: Iterable[int]) -> list[Hold]:
        """Held lanes whose time has come, each with the message to try; without one, a person has dropped it."""
        if not self._store.has_holds(buckets):
            return []
        return self._store.due_holds(buckets, self._destination, _AT_ONCE)

    def let_go(self, holds: Sequence[Hold]) -> None:
        """Let what waits in these lanes be read again."""
        if holds:
            self._store.let_go(holds)
            log.info("outbox_lanes_freed", extra={"lanes": len(holds)})

    def _lane(self, message: Waiting) -> bytes:
        if self._skips and message.bucket >= 0:
            return lane_of(message.destination, None)
        return message.lane

    def _tell(self, refusal: Refusal) -> None:
        more = self._told.take()
        if more is None:
            return
        retry_it = self._store.command("outbox", "retry", refusal.message.message_id)
        log.warning(
            "outbox_message_held",
            extra={
                "message_id": refusal.message.message_id,
                "subject": refusal.message.subject,
                "order_key": refusal.message.order_key,
                "attempts": refusal.attempts,
                "retry_in_s": refusal.delay_us / 1_000_000,
                "error": refusal.reason,
                "more": more,
                "hint": f"mend the cause, then type: {retry_it}",
            },
        )


class Deletions:
    """Deletes published messages, and keeps which of them the database does not delete.

    A batch is deleted while the next one is published; a relay reads nothing before all are deleted: it would read, and
    publish, the same messages again and again.

    Args:
        store: the outbox.
    """

    def __init__(self, store: OutboxStore) -> None:
        self._store = store
        # The number of each, and when it was sent.
        self._published: dict[int, int] = {}
        self._under_way: Future[None] | None = None
        # A daemon: the end of the process must not wait for a database that is silent.
        self._side = SideThreads("idempotent-relay-deletes", most=1)

    def begin(self, published: Iterable[Waiting]) -> None:
        """Delete messages in another thread, when those before them are deleted.

        Raises:
            StoreError: the database failed, or refuses; for these messages `finish` raises it.
        """
        self._note(published)
        if not self._published:
            return
        answer: Future[None] = Future()
        try:
            self._side.run(self._delete, answer, dict(self._published))
        except RuntimeError:  # the process may have no more threads
            self.finish()
        else:
            self._under_way = answer

    def finish(self, published: Iterable[Waiting] = ()) -> None:
        """Wait for what was begun, and delete these messages and what could not be deleted before.

        Raises:
            StoreError: the database failed, or refuses.
        """
        self._note(published)
        self._store.delete(self._published)
        self._published.clear()

    def close(self) -> None:
        """End the thread when it has deleted."""
        self._side.close()

    def _note(self, published: Iterable[Waiting]) -> None:
        """Wait for what was begun, and note more to delete, also if that failed."""
        begun, self._under_way = self._under_way, None
        try:
            if begun is not None:
                begun.result()
                self._published.clear()
        finally:
            self._published.update((message.number, message.created_at) for message in published)

    def _delete(self, answer: Future[None], published: dict[int, int]) -> None:
        try:
            self._store.delete(published)
        except BaseException as error:
            answer.set_exception(error)
        else:
            answer.set_result(None)
