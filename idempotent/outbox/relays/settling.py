"""What becomes of messages that a relay has tried to publish: Deletions of those accepted, Holds on those refused."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from typing import Final

from idempotent.checkers.side_calls import SideThreads
from idempotent.logs import EventLog
from idempotent.observe.log_lines import LogThrottle
from idempotent.outbox.entries import lane_of
from idempotent.outbox.store import MESSAGE, OutboxStore, Waiting, marks, numbers
from idempotent.policy import Backoff
from idempotent.schema import ERROR_TEXT_LENGTH
from idempotent.stores.sql.cursor import DriverConnection, execute
from idempotent.values import value

log = EventLog(__name__)

# The most held lanes that are tried in one step: what is not held must not wait for all of them.
_AT_ONCE: Final = 100
_OF_WAITING: Final = ", ".join(f"w.{name}" for name in MESSAGE.split(", "))
_HOLD_AGAIN: Final = (
    "UPDATE {held} SET first_id = ?, attempts = ?, reason = ?, due_at = {now} + ?"
    " WHERE bucket = ? AND lane = ?"
)
_HOLD_FIRST: Final = (
    "INSERT INTO {held} (first_id, attempts, reason, due_at, bucket, lane, held_at)"
    " VALUES (?, ?, ?, {now} + ?, ?, ?, {now})"
)
_MOVE_ALONE: Final = "UPDATE {waiting} SET lane = ?, bucket = -1 - bucket WHERE id = ? AND bucket >= 0"
_MOVE_LANE: Final = "UPDATE {waiting} SET bucket = -1 - bucket WHERE bucket = ? AND lane = ?"


@value
class Hold:
    """A lane that is held.

    Attributes:
        bucket: its bucket.
        lane: the lane.
        first: its first message; None: a person has dropped the only one.
    """

    bucket: int
    lane: bytes
    first: Waiting | None


@value
class Refusal:
    """A message that a broker has refused.

    Attributes:
        message: the message.
        reason: why.
        lane: what is held: its lane, or the message alone.
        attempts: how often it was refused, this time included.
        delay_s: seconds until it is tried again.
    """

    message: Waiting
    reason: str
    lane: bytes
    attempts: int
    delay_s: float


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
        """Those that may be published. The others are moved to those that are held before them."""
        # Asked first: the lanes of a batch take longer, by some microseconds for each message.
        if not messages or not self._any_in({each.bucket for each in messages}):
            return list(messages)
        held = self._held({each.lane for each in messages})
        aside = [each.number for each in messages if each.lane in held]
        if aside:
            self._store.change(
                f"UPDATE {{waiting}} SET bucket = -1 - bucket WHERE id IN {numbers(aside)} AND bucket >= 0 AND EXISTS"
                " (SELECT 1 FROM {held} h WHERE h.bucket = {waiting}.bucket AND h.lane = {waiting}.lane)",
                many=True,
            )
        return [each for each in messages if each.lane not in held]

    def hold(self, refused: Sequence[tuple[Waiting, str]]) -> None:
        """Set refused messages aside, each with the others of its lane."""
        if not refused:
            return
        lanes = [self._lane(message) for message, _ in refused]
        before = self._held(lanes)
        refusals = []
        for (message, reason), lane in zip(refused, lanes, strict=True):
            attempts, first = before.get(lane, (0, 0))
            attempts = attempts + 1 if first == message.number else 1
            refusals.append(Refusal(message, reason, lane, attempts, self._backoff.delay_s(attempts)))
        self._store.connections.run_atomically(self._set_aside, refusals)
        for each in refusals:
            self._tell(each)

    def due(self, buckets: Iterable[int]) -> list[Hold]:
        """Held lanes whose time has come, each with the message to try; without one, a person has dropped it."""
        if not self._any_in(buckets):
            return []
        rows = self._store.ask(
            f"SELECT h.bucket, h.lane, {_OF_WAITING} FROM {{held}} h"
            " LEFT JOIN {waiting} w ON w.id = h.first_id AND w.bucket = -1 - h.bucket"
            f" WHERE h.due_at <= {{now}} AND h.bucket IN {numbers(buckets)}"
            f" AND (w.destination = ? OR w.id IS NULL) ORDER BY h.due_at LIMIT {_AT_ONCE:d}",
            self._destination,
            many=True,
        )
        found = []
        for bucket, lane, *row in rows:
            first = self._first(bucket, bytes(lane)) if row[0] is None else Waiting(*row)
            if first is None or first.destination == self._destination:
                found.append(Hold(bucket, bytes(lane), first))
        return found

    def let_go(self, holds: Sequence[Hold]) -> None:
        """Let what waits in these lanes be read again."""
        if holds:
            self._store.connections.run_atomically(self._put_back, holds)
            log.info("outbox_lanes_freed", extra={"lanes": len(holds)})

    def _lane(self, message: Waiting) -> bytes:
        if self._skips and message.order_key is not None and message.bucket >= 0:
            return lane_of(message.destination, None)
        return message.lane

    def _any_in(self, buckets: Iterable[int]) -> bool:
        statement = f"SELECT 1 FROM {{held}} WHERE bucket IN {numbers(buckets)} LIMIT 1"
        return bool(self._store.ask(statement, many=True))

    def _held(self, lanes: Collection[bytes]) -> dict[bytes, tuple[int, int]]:
        """Of these lanes, those that are held: how often a message was refused, and the number of that message."""
        statement = f"SELECT lane, attempts, first_id FROM {{held}} WHERE lane IN {marks(lanes)}"
        rows = self._store.ask(statement, *lanes, many=True)
        return {bytes(lane): (attempts, first) for lane, attempts, first in rows}

    def _first(self, bucket: int, lane: bytes) -> Waiting | None:
        """The first message of a held lane, found by a look at all that are held in its bucket."""
        statement = f"SELECT {MESSAGE} FROM {{waiting}} WHERE bucket = ? AND lane = ? ORDER BY id LIMIT 1"
        found = self._store.ask(statement, -1 - bucket, lane)
        return Waiting(*found[0]) if found else None

    def _set_aside(self, driver: DriverConnection, refusals: Sequence[Refusal]) -> None:
        text = self._store.text
        without_key = []
        for each in refusals:
            message, place = each.message, (each.message.home, each.lane)
            why = self._store.connections.dialect.storable(driver, each.reason[:ERROR_TEXT_LENGTH])
            counted = (message.number, each.attempts, why, round(each.delay_s * 1e6), *place)
            if execute(driver, text(_HOLD_AGAIN), counted) == 0:
                execute(driver, text(_HOLD_FIRST), counted)
            if message.bucket < 0:
                continue  # it was held before, and so is its lane
            if message.order_key is None:
                without_key.append(message.number)
            elif each.lane != message.lane:
                execute(driver, text(_MOVE_ALONE), (each.lane, message.number))
            else:
                execute(driver, text(_MOVE_LANE), place)
        if without_key:
            those = f" WHERE id IN {numbers(without_key)} AND bucket >= 0"
            execute(driver, text(f"UPDATE {{waiting}} SET bucket = -1 - bucket{those}"), many=True)

    def _put_back(self, driver: DriverConnection, holds: Sequence[Hold]) -> None:
        forget = self._store.text("DELETE FROM {held} WHERE bucket = ? AND lane = ?")
        for hold in holds:
            execute(driver, forget, (hold.bucket, hold.lane))
            if hold.first is None or hold.first.order_key is not None:
                execute(driver, self._store.text(_MOVE_LANE), (-1 - hold.bucket, hold.lane))

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
                "retry_in_s": refusal.delay_s,
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
