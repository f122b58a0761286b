"""OutboxStore: what a relay, and a person, asks of the tables of an outbox."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from operator import attrgetter
from typing import Final

from idempotent.checkers.sql.store import SqlStore
from idempotent.observe.events import OutboxStats
from idempotent.outbox.headers import decoded_headers
from idempotent.schema import outbox_name
from idempotent.stores.sql.cursor import DriverConnection, Row, execute, query
from idempotent.stores.sql.engines import AnyEngine
from idempotent.values import value

AHEAD_US: Final = 1_000_000
"""How much later than now a lease may have begun: the clocks of the servers of a cluster differ."""
_CONTENT: Final = "bucket, lane, message_id, destination, subject, order_key, headers, body"
MESSAGE: Final = f"id, {_CONTENT}, created_at"
"""The columns of a `Waiting`, in the order of its attributes."""
# A relay, if its lease is not of a clock that has gone back.
_AT_WORK: Final = f"slot < 0 AND lease_until >= {{now}} AND lease_until - lease_us <= {{now}} + {AHEAD_US:d}"


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

    @property
    def home(self) -> int:
        """The bucket of its lane, also while that is held."""
        return self.bucket if self.bucket >= 0 else -1 - self.bucket

    def header_values(self) -> dict[str, object]:
        """Its headers."""
        return decoded_headers(self.headers)


class OutboxStore:
    """The tables of one outbox, on connections of its own.

    In a statement `{waiting}`, `{delayed}`, `{held}` and `{leases}` stand for the tables, `{now}` for the clock of the
    database, and `?` for the driver's marker. Numbers that the library made itself are part of the text. Statements
    whose text differs from call to call are `many`: the driver prepares those of the others.

    Args:
        engine_or_url: an engine, an AsyncEngine or a URL.
        table: validated name of the key table that the outbox belongs to.
        schema: where the tables are; None: where the first connection finds the outbox.

    Attributes:
        name: the outbox's, which is that of its first table.

    Raises:
        ConfigurationError: an invalid URL or schema, or an unsupported database.
        MissingExtraError: the database's driver is not installed.
    """

    def __init__(self, engine_or_url: AnyEngine, table: str, schema: str | None = None) -> None:
        self.table: Final = table
        self.name: Final = outbox_name(table)
        self._database = SqlStore(
            engine_or_url, table, schema=schema, located_by=self.name, asynchronous=True
        )
        self.connections: Final = self._database.connections

    def command(self, *words: str) -> str:
        """`idempotent` with these words, for this outbox, as a person types it."""
        return f"idempotent {shlex.join(words)} {self._database.command_options}"

    def ask(self, statement: str, *parameters: object, many: bool = False) -> Sequence[Row]:
        """The rows of a query."""
        return self.connections.run(partial(query, many=many), self.text(statement), parameters)

    def change(self, statement: str, *parameters: object, many: bool = False) -> int:
        """Change rows. Returns how many."""
        return self.connections.run(partial(execute, many=many), self.text(statement), parameters)

    def text(self, statement: str) -> str:
        """A statement as the driver takes it.

        Raises:
            StoreError: the database did not answer when asked for its version.
        """
        return self.connections.dialect.markers(statement.format_map(self._names))

    @cached_property
    def _names(self) -> Mapping[str, str]:
        dialect = self.connections.dialect
        tables = {
            "waiting": self.name,
            **{each: f"{self.name}_{each}" for each in ("delayed", "held", "leases")},
        }
        return {"now": dialect.now_us, **{each: dialect.located(tables[each]) for each in tables}}

    def read(self, limits: Mapping[int, int], destination: str | None = None) -> list[Waiting]:
        """The first messages of buckets, at most so many of each, in the order of their rows; None: for all brokers."""
        # Without COALESCE PostgreSQL, which knows nothing of a new table, expects few messages of a destination: it
        # reads all of a bucket and sorts them.
        only = "" if destination is None else " AND COALESCE(destination = ?, FALSE)"
        statement = " UNION ALL ".join(self.reads(limits, only))
        rows = self.ask(statement, *[destination] * statement.count("?"), many=True)
        return sorted((Waiting(*row) for row in rows), key=attrgetter("number"))

    def reads(self, limits: Mapping[int, int], only: str) -> Iterator[str]:
        """The queries of `read`, with this condition."""
        kind = self.connections.dialect.name
        if kind == "postgresql":
            # One subquery for all buckets: it takes longer to plan 64 of them than to run them. A range of (bucket, id)
            # is an order that only the index of both has: with `bucket = b.bucket` PostgreSQL may read all rows in the
            # order of their ids instead.
            for limit in set(limits.values()):
                chosen = ", ".join(f"{bucket:d}" for bucket in limits if limits[bucket] == limit)
                yield (
                    f"SELECT w.* FROM unnest(ARRAY[{chosen}]::smallint[]) AS b (bucket) CROSS JOIN LATERAL"
                    f" (SELECT {MESSAGE} FROM {{waiting}}"
                    f" WHERE (bucket, id) > (b.bucket, 0) AND (bucket, id) < (b.bucket + 1, 0){only}"
                    f" ORDER BY bucket, id LIMIT {limit:d}) AS w"
                )
            return
        index = self.connections.dialect.quoted(f"ix_{self.name}_bucket")
        for bucket, limit in limits.items():
            part = (
                f"SELECT {MESSAGE} FROM {{waiting}}{f' FORCE INDEX ({index})' if kind == 'mysql' else ''}"
                f" WHERE bucket = {bucket:d}{only} ORDER BY bucket, id LIMIT {limit:d}"
            )
            # In parentheses MariaDB sends the rows as it finds them; each derived table would go to the disk: 1 ms.
            yield f"({part})" if kind == "mysql" else f"SELECT * FROM ({part})"

    def delete(self, published: Mapping[int, int]) -> None:
        """Delete published messages, given by their numbers and when they were sent.

        A number may be another message's by now: the table was emptied or created again, or a replica took over that
        had not got the last commits.
        """
        if published:
            self.change(
                f"DELETE FROM {{waiting}} WHERE id IN {numbers(published)}"
                f" AND created_at IN {numbers(set(published.values()))}",
                many=True,
            )

    def move_due(self, buckets: Iterable[int], destination: str, limit: int) -> int:
        """Let delayed messages of these buckets wait for the relay when their time has come. Returns how many."""
        statement = (
            f"SELECT id FROM {{delayed}} WHERE due_at <= {{now}} AND bucket IN {numbers(buckets)} AND destination = ?"
            f" ORDER BY due_at, id LIMIT {limit:d}"
        )
        due = [row[0] for row in self.ask(statement, destination, many=True)]
        return self.connections.run_atomically(self._move, due) if due else 0

    def _move(self, driver: DriverConnection, due: Sequence[int]) -> int:
        # Locked first: another relay that believes it has the bucket finds none of them afterwards.
        lock = "" if self.connections.dialect.name == "sqlite" else " FOR UPDATE"
        statement = f"SELECT id FROM {{delayed}} WHERE id IN {numbers(due)} ORDER BY id{lock}"
        locked = [row[0] for row in query(driver, self.text(statement), many=True)]
        if locked:
            these = f"FROM {{delayed}} WHERE id IN {numbers(locked)}"
            # They wait from when their time came on, in the order of their times.
            moved = f"SELECT {_CONTENT}, due_at {these} ORDER BY due_at, id"
            for change in (f"INSERT INTO {{waiting}} ({_CONTENT}, created_at) {moved}", f"DELETE {these}"):
                execute(driver, self.text(change), many=True)
        return len(locked)

    def free_unheld(self, buckets: Iterable[int], destination: str | None = None) -> int:
        """Publish messages of these buckets again that were set aside and whose hold is gone. Returns how many.

        For example, the table of holds was dropped and created again. None: messages for all brokers.
        """
        aside = numbers(-1 - bucket for bucket in buckets)
        only = "" if destination is None else " AND destination = ?"
        return self.change(
            f"UPDATE {{waiting}} SET bucket = -1 - bucket WHERE bucket IN {aside}{only}"
            " AND NOT EXISTS (SELECT 1 FROM {held} h WHERE h.bucket = -1 - {waiting}.bucket"
            " AND h.lane = {waiting}.lane)",
            *(() if destination is None else (destination,)),
            many=True,
        )

    def has_waiting(self, names: Sequence[str]) -> bool:
        """Whether a message for one of these destinations waits, and is not held."""
        statement = f"SELECT 1 FROM {{waiting}} WHERE destination IN {marks(names)} AND bucket >= 0 LIMIT 1"
        return bool(self.ask(statement, *names, many=True))

    def other_destination(self, names: Sequence[str]) -> str | None:
        """A destination of waiting messages that is not in the list."""
        others = f"bucket >= 0 AND destination NOT IN {marks(names)}"
        rows = self.ask(f"SELECT destination FROM {{waiting}} WHERE {others} LIMIT 1", *names, many=True)
        return str(rows[0][0]) if rows else None

    def stats(self) -> OutboxStats:
        """What is in the outbox."""
        ((waiting, oldest_us, held, lanes, delayed, relays, idle, leases_us),) = self.ask(
            "SELECT (SELECT COUNT(*) FROM {waiting} WHERE bucket >= 0),"
            " (SELECT {now} - MIN(created_at) FROM {waiting} WHERE bucket >= 0),"
            " (SELECT COUNT(*) FROM {waiting} WHERE bucket < 0),"
            " (SELECT COUNT(*) FROM {held}), (SELECT COUNT(*) FROM {delayed}),"
            f" (SELECT COUNT(DISTINCT owner) FROM {{leases}} WHERE {_AT_WORK}),"
            f" (SELECT COUNT(DISTINCT owner) FROM {{leases}} WHERE {_AT_WORK} AND (destination, owner) NOT IN"
            " (SELECT destination, owner FROM {leases} WHERE slot >= 0 AND lease_until >= {now})),"
            " (SELECT MAX(lease_until) - {now} FROM {leases} WHERE slot >= 0 AND lease_until >= {now})"
        )
        return OutboxStats(
            waiting, _seconds(oldest_us), held, lanes, delayed, relays, idle, _seconds(leases_us)
        )

    def unserved(self) -> dict[str, int]:
        """The destinations that no relay publishes to, with how many messages wait or are held for each."""
        rows = self.ask(
            "SELECT destination, COUNT(*) FROM {waiting} WHERE destination NOT IN"
            f" (SELECT destination FROM {{leases}} WHERE {_AT_WORK}) GROUP BY destination ORDER BY 1"
        )
        return {str(name): count for name, count in rows}

    def close(self) -> None:
        """Close the connections, and the engine if it was made here. Idempotent."""
        self._database.close()


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6


def numbers(given: Iterable[int]) -> str:
    """Numbers that the library made itself, as a list in a statement."""
    return f"({', '.join(f'{number:d}' for number in given)})"


def marks(values: Collection[object]) -> str:
    """Markers for parameters, as a list in a statement."""
    return f"({', '.join('?' * len(values))})"
