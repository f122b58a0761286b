"""OutboxStore: what a relay, and a person, asks of the tables of an outbox."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from idempotent.observe.events import OutboxStats
from idempotent.outbox.headers import decoded_headers
from idempotent.outbox.sql import Statements
from idempotent.schema import ERROR_TEXT_LENGTH, outbox_name, validate_schema
from idempotent.stores.sql.bridge import Bridge
from idempotent.stores.sql.connections import AwaitedConnections, Connections
from idempotent.stores.sql.cursor import DriverConnection, Row, execute, query
from idempotent.stores.sql.engines import AnyEngine, engine_from
from idempotent.stores.sql.faults import options_for
from idempotent.values import value


@value
class Waiting:
    """A message in the outbox.

    Attributes:
        number: its row.
        bucket: its bucket, or -1 minus that while its lane is held.
        lane: what is published one after the other.
        message_id: its id.
        destination: the name of its broker.
        subject: queue, destination or topic.
        order_key: its order key.
        headers: its headers as stored.
        body: its payload; None: a tombstone.
        created_at: when it was sent, or when its delay ended, in microseconds by the clock of the database.
    """

    number: int
    bucket: int
    lane: bytes
    message_id: str
    destination: str
    subject: str
    order_key: str | None
    headers: bytes | None
    body: bytes | None
    created_at: int

    def header_values(self) -> dict[str, object]:
        """Its headers."""
        return decoded_headers(self.headers)


@dataclass(slots=True)
class Hold:
    """Why a lane is not published.

    Attributes:
        bucket: its bucket.
        lane: the lane.
        first: that message; None: a person has dropped it.
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
        bucket: the bucket of its lane, also while that is held.
        lane: what is held: its lane, or the message alone.
        attempts: how often it was refused, this time included.
        delay_us: microseconds until it is tried again.
    """

    message: Waiting
    reason: str
    bucket: int
    lane: bytes
    attempts: int
    delay_us: int


class OutboxStore:
    """The tables of one outbox, on connections of its own.

    Args:
        engine_or_url: an engine, an AsyncEngine or a URL.
        table: validated name of the key table that the outbox belongs to.
        schema: where the tables are; None: where the first connection finds the outbox.

    Raises:
        ConfigurationError: an invalid URL or schema, or an unsupported database.
        MissingExtraError: the database's driver is not installed.
    """

    def __init__(self, engine_or_url: AnyEngine, table: str, schema: str | None = None) -> None:
        engine = engine_from(engine_or_url, asynchronous=True)
        self.table: Final = table
        self._owns_engine = engine is not getattr(engine_or_url, "sync_engine", engine_or_url)
        self._bridge = Bridge()
        self._schema = validate_schema(schema)
        options: dict[str, Any] = {
            "located_by": outbox_name(table),
            "schema": self._schema,
            "waits_briefly": True,
        }
        self.connections: Final = (
            AwaitedConnections(self._bridge, engine, table, **options)
            if engine.dialect.is_async
            else Connections(engine, table, **options)
        )

    def command(self, *words: str) -> str:
        """`idempotent` with these words, for this outbox, as a person types it."""
        named = options_for(self.connections.engine, self.table, self._schema)
        return f"idempotent {shlex.join(words)} {named}"

    @cached_property
    def sql(self) -> Statements:
        """The statements.

        Raises:
            StoreError: the database did not answer when asked for its version.
        """
        return Statements(self.connections.dialect, self.table)

    def read(self, limits: Mapping[int, int], destination: str | None = None) -> list[Waiting]:
        """The first messages of buckets, at most so many of each, in the order of their rows; None: for all brokers."""
        statement = self.sql.read(limits, of_one=destination is not None)
        parameters = () if destination is None else (destination,) * self.sql.reads(limits)
        rows = self.connections.run(_query_many, statement, parameters)
        return sorted(map(_waiting, rows), key=_number)

    def delete(self, published: Mapping[int, int]) -> None:
        """Delete published messages, given by their numbers and when they were sent."""
        if published:
            self.connections.run(_execute_many, self.sql.delete(published))

    def has_holds(self, buckets: Iterable[int]) -> bool:
        """Whether lanes of these buckets are held."""
        chosen = sorted(buckets)
        return bool(chosen) and bool(self.connections.run(_query_many, self.sql.any_hold(chosen)))

    def held(self, lanes: Sequence[bytes]) -> dict[bytes, tuple[int, int]]:
        """Of these lanes, those that are held: how often a message was refused, and the number of that message."""
        rows = self.connections.run(_query_many, self.sql.held(len(lanes)), tuple(lanes)) if lanes else []
        return {bytes(lane): (attempts, first) for lane, attempts, first in rows}

    def hold(self, refusals: Sequence[Refusal]) -> None:
        """Hold the lanes of refused messages, and move what waits in them aside."""

        def hold(driver: DriverConnection) -> None:
            for each in refusals:
                why = self.connections.dialect.storable(driver, each.reason[:ERROR_TEXT_LENGTH])
                counted = (each.message.number, each.attempts, why, each.delay_us, each.bucket, each.lane)
                if execute(driver, self.sql.hold_again, counted) == 0:
                    execute(driver, self.sql.hold_first, counted)
            new = [each for each in refusals if each.message.bucket >= 0]
            for each in new:
                if each.lane != each.message.lane:
                    execute(driver, self.sql.set_lane, (each.lane, each.message.number))
            alone = [each.message.number for each in new if _is_alone(each)]
            if alone:
                execute(driver, self.sql.set_aside(alone), many=True)
            for each in new:
                if not _is_alone(each):
                    execute(driver, self.sql.set_lane_aside, (each.bucket, each.lane))

        self.connections.run_atomically(hold)

    def set_aside(self, messages: Sequence[Waiting]) -> None:
        """Move messages, whose lanes are held, to those that are held before them."""
        numbers = [each.number for each in messages]
        self.connections.run(_execute_many, self.sql.set_aside_held(numbers))

    def due_holds(self, buckets: Iterable[int], destination: str, limit: int) -> list[Hold]:
        """Held lanes of a destination that are to be tried again, and those whose first message is gone."""
        rows = self.connections.run(_query_many, self.sql.due_holds(sorted(buckets), limit), (destination,))
        return [
            Hold(bucket, bytes(lane), None if first[0] is None else _waiting(tuple(first)))
            for bucket, lane, *first in rows
        ]

    def first_held(self, hold: Hold) -> Waiting | None:
        """The first message of a held lane, found by a look at all that are held in its bucket."""
        found = self.connections.run(query, self.sql.first_held, (-1 - hold.bucket, hold.lane))
        return _waiting(found[0]) if found else None

    def let_go(self, holds: Sequence[Hold]) -> None:
        """Publish the messages of lanes again."""

        def move(driver: DriverConnection) -> None:
            for hold in holds:
                execute(driver, self.sql.forget_hold, (hold.bucket, hold.lane))
                if hold.first is None or hold.first.order_key is not None:
                    execute(driver, self.sql.set_lane_aside, (-1 - hold.bucket, hold.lane))

        self.connections.run_atomically(move)

    def move_due(self, buckets: Iterable[int], destination: str, limit: int) -> int:
        """Let delayed messages of these buckets wait for the relay when their time has come. Returns how many."""
        chosen = sorted(buckets)
        if not chosen:
            return 0
        due = [
            row[0] for row in self.connections.run(_query_many, self.sql.due(chosen, limit), (destination,))
        ]
        return self.connections.run_atomically(self._move, due) if due else 0

    def _move(self, driver: DriverConnection, due: Sequence[int]) -> int:
        # Locked first: another relay that believes it has the bucket finds none of them afterwards.
        locked = [row[0] for row in query(driver, self.sql.lock_due(due), many=True)]
        if locked:
            execute(driver, self.sql.move(locked), many=True)
            execute(driver, self.sql.forget_delayed(locked), many=True)
        return len(locked)

    def free_unheld(self, buckets: Iterable[int], destination: str | None = None) -> int:
        """Publish messages of these buckets again that were set aside and whose hold is gone. Returns how many.

        For example, the table of holds was dropped and created again. None: messages for all brokers.
        """
        chosen = sorted(buckets)
        if not chosen:
            return 0
        statement = self.sql.free_unheld(chosen, of_one=destination is not None)
        return self.connections.run(_execute_many, statement, () if destination is None else (destination,))

    def has_waiting(self, names: Sequence[str]) -> bool:
        """Whether a message for one of these destinations waits, and is not held."""
        return bool(self.connections.run(_query_many, self.sql.any_waiting(len(names)), tuple(names)))

    def other_destination(self, names: Sequence[str]) -> str | None:
        """A destination of waiting messages that is not in the list."""
        rows = self.connections.run(_query_many, self.sql.other_destination(len(names)), tuple(names))
        return str(rows[0][0]) if rows else None

    def stats(self) -> OutboxStats:
        """What is in the outbox."""
        ((waiting, oldest_us, held, lanes, delayed, relays, idle, leases_us),) = self.connections.run(
            query, self.sql.stats
        )
        return OutboxStats(
            waiting, _seconds(oldest_us), held, lanes, delayed, relays, idle, _seconds(leases_us)
        )

    def unserved(self) -> dict[str, int]:
        """The destinations that no relay publishes to, with how many messages wait or are held for each."""
        return {str(name): count for name, count in self.connections.run(query, self.sql.unserved)}

    def close(self) -> None:
        """Close the connections, and the engine if it was made here. Idempotent."""
        self.connections.close()
        if self._owns_engine:
            self.connections.engine.dispose()
        self._bridge.close()


def _number(message: Waiting) -> int:
    return message.number


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6


def _is_alone(refusal: Refusal) -> bool:
    return refusal.message.order_key is None or refusal.lane != refusal.message.lane


# Statements whose text differs from call to call need a cursor of their own: the driver prepares those of the others.


def _query_many(driver: DriverConnection, statement: str, parameters: Sequence[object] = ()) -> Sequence[Row]:
    return query(driver, statement, parameters, many=True)


def _execute_many(driver: DriverConnection, statement: str, parameters: Sequence[object] = ()) -> int:
    return execute(driver, statement, parameters, many=True)


def _waiting(row: Row) -> Waiting:
    number, bucket, lane, message_id, destination, subject, order_key, headers, body, created_at = row
    return Waiting(
        number,
        bucket,
        bytes(lane),
        message_id,
        destination,
        subject,
        order_key,
        None if headers is None else bytes(headers),
        None if body is None else bytes(body),
        created_at,
    )
