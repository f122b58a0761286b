"""The SQL text of an outbox, made once for each table and dialect. `?` stands for the driver's marker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from idempotent.outbox.entries import BUCKETS
from idempotent.schema import outbox_name
from idempotent.stores.sql.dialects import SqlDialect

AHEAD_US: Final = 1_000_000
"""How much later than now a lease may have begun: the clocks of the servers of a cluster differ."""
_CONTENT: Final = "bucket, lane, message_id, destination, subject, order_key, headers, body"
_MESSAGE: Final = f"{_CONTENT}, created_at"


class Statements:
    """The statements over the tables of one outbox. Numbers that the library made itself are part of the text.

    Args:
        dialect: the properties of the database.
        table: validated name of the key table that the outbox belongs to.
    """

    buckets: Final = range(BUCKETS)

    def __init__(self, dialect: SqlDialect, table: str) -> None:
        name = outbox_name(table)
        self._dialect = dialect
        self._waiting, self._delayed, held, leases = (
            dialect.located(each) for each in (name, f"{name}_delayed", f"{name}_held", f"{name}_leases")
        )
        self._held, self._leases = held, leases
        self._index = (
            f"FORCE INDEX ({dialect.quoted(f'ix_{name}_bucket')})" if dialect.name == "mysql" else ""
        )
        now, text = dialect.now_us, dialect.markers
        waiting = self._waiting
        self.hold_again: Final = text(
            f"UPDATE {held} SET first_id = ?, attempts = ?, reason = ?, due_at = {now} + ?"
            " WHERE bucket = ? AND lane = ?"
        )
        self.hold_first: Final = text(
            f"INSERT INTO {held} (first_id, attempts, reason, due_at, bucket, lane, held_at)"
            f" VALUES (?, ?, ?, {now} + ?, ?, ?, {now})"
        )
        self.set_lane: Final = text(f"UPDATE {waiting} SET lane = ? WHERE id = ?")
        self.set_lane_aside: Final = text(
            f"UPDATE {waiting} SET bucket = -1 - bucket WHERE bucket = ? AND lane = ?"
        )
        self.forget_hold: Final = text(f"DELETE FROM {held} WHERE bucket = ? AND lane = ?")
        self.first_held: Final = text(
            f"SELECT id, {_MESSAGE} FROM {waiting} WHERE bucket = ? AND lane = ? ORDER BY id LIMIT 1"
        )
        # Leases are those of one destination.
        live = f"lease_until >= {now}"
        # One that began later than now is of a clock that has gone back: a relay cuts it, and nobody else counts it.
        began = "lease_until - lease_us"
        at_work = f"slot < 0 AND {live} AND {began} <= {now} + {AHEAD_US:d}"
        self.announce: Final = text(
            f"INSERT INTO {leases} (destination, slot, owner, lease_us, lease_until) VALUES (?, ?, ?, ?, {now} + ?)"
        )
        here = f"{leases} WHERE destination = ?"
        self.slots: Final = text(f"SELECT slot, owner, lease_us, lease_until, {now} FROM {here}")
        self.cut: Final = text(
            f"UPDATE {leases} SET lease_until = {now} + lease_us WHERE destination = ? AND {began} > {now}"
        )
        # A relay without a live lease has no buckets, but it is still there.
        self.renew: Final = text(
            f"UPDATE {leases} SET lease_until = {now} + ?"
            f" WHERE destination = ? AND owner = ? AND (slot < 0 OR {live})"
        )
        self._free = f"NOT {live}"
        self.leave_all: Final = text(
            f"UPDATE {leases} SET lease_until = 0 WHERE destination = ? AND slot >= 0 AND owner = ?"
        )
        self.forget_relays: Final = text(
            f"DELETE FROM {here} AND slot < 0 AND (owner = ? OR lease_until < {now})"
        )
        self.stats: Final = text(
            f"SELECT (SELECT COUNT(*) FROM {waiting} WHERE bucket >= 0),"
            f" (SELECT {now} - MIN(created_at) FROM {waiting} WHERE bucket >= 0),"
            f" (SELECT COUNT(*) FROM {waiting} WHERE bucket < 0),"
            f" (SELECT COUNT(*) FROM {held}), (SELECT COUNT(*) FROM {self._delayed}),"
            f" (SELECT COUNT(DISTINCT owner) FROM {leases} WHERE {at_work}),"
            f" (SELECT COUNT(DISTINCT owner) FROM {leases} WHERE {at_work} AND (destination, owner) NOT IN"
            f" (SELECT destination, owner FROM {leases} WHERE slot >= 0 AND {live})),"
            f" (SELECT MAX(lease_until) - {now} FROM {leases} WHERE slot >= 0 AND {live})"
        )
        self.unserved: Final = text(
            f"SELECT destination, COUNT(*) FROM {waiting} WHERE destination NOT IN"
            f" (SELECT destination FROM {leases} WHERE {at_work}) GROUP BY destination ORDER BY 1"
        )

    def read(self, limits: Mapping[int, int], *, of_one: bool) -> str:
        """The first messages of each bucket; `of_one`: the parameter is a destination, as often as `reads` says."""
        # Without COALESCE PostgreSQL, which knows nothing of a new table, expects few messages of a destination: it
        # reads all of a bucket and sorts them.
        only = " AND COALESCE(destination = ?, FALSE)" if of_one else ""
        return self._dialect.markers(" UNION ALL ".join(self._reads(limits, only)))

    def reads(self, limits: Mapping[int, int]) -> int:
        """Of how many queries `read` is made."""
        return len(list(self._reads(limits, "")))

    def _reads(self, limits: Mapping[int, int], only: str) -> Iterator[str]:
        if self._dialect.name == "postgresql":
            for limit in set(limits.values()):
                yield self._read_of_all([bucket for bucket in limits if limits[bucket] == limit], limit, only)
            return
        for bucket, limit in limits.items():
            part = (
                f"SELECT id, {_MESSAGE} FROM {self._waiting} {self._index} WHERE bucket = {bucket:d}{only}"
                f" ORDER BY bucket, id LIMIT {limit:d}"
            )
            # In parentheses MariaDB sends the rows as it finds them; each derived table would go to the disk: 1 ms.
            yield f"({part})" if self._dialect.name == "mysql" else f"SELECT * FROM ({part})"

    def _read_of_all(self, buckets: Sequence[int], limit: int, only: str) -> str:
        """One subquery for all buckets: PostgreSQL takes longer to plan 64 of them than to run them."""
        # A range of (bucket, id) is an order that only the index of both has: with `bucket = b.bucket` PostgreSQL may
        # read all rows in the order of their ids instead.
        chosen = ", ".join(f"{bucket:d}" for bucket in buckets)
        return (
            f"SELECT w.* FROM unnest(ARRAY[{chosen}]::smallint[]) AS b (bucket) CROSS JOIN LATERAL"
            f" (SELECT id, {_MESSAGE} FROM {self._waiting}"
            f" WHERE (bucket, id) > (b.bucket, 0) AND (bucket, id) < (b.bucket + 1, 0){only}"
            f" ORDER BY bucket, id LIMIT {limit:d}) AS w"
        )

    def other_destination(self, destinations: int) -> str:
        """A destination of waiting messages that is not in the list."""
        return self._dialect.markers(
            f"SELECT destination FROM {self._waiting} WHERE destination NOT IN ({', '.join('?' * destinations)})"
            " AND bucket >= 0 LIMIT 1"
        )

    def any_waiting(self, destinations: int) -> str:
        """Whether a message for one of these destinations waits, and is not held."""
        return self._dialect.markers(
            f"SELECT 1 FROM {self._waiting} WHERE destination IN ({', '.join('?' * destinations)})"
            " AND bucket >= 0 LIMIT 1"
        )

    def delete(self, published: Mapping[int, int]) -> str:
        """Delete messages, given by their numbers and since when they wait.

        A number may be another message's by now: the table was emptied or created again, or a replica took over that
        had not got the last commits.
        """
        return (
            f"DELETE FROM {self._waiting} WHERE id IN {_list(published)}"
            f" AND created_at IN {_list(set(published.values()))}"
        )

    def any_hold(self, buckets: Iterable[int]) -> str:
        """Whether lanes of buckets are held."""
        return f"SELECT 1 FROM {self._held} WHERE bucket IN {_list(buckets)} LIMIT 1"

    def held(self, lanes: int) -> str:
        """Those of these lanes that are held."""
        return self._dialect.markers(
            f"SELECT lane, attempts, first_id FROM {self._held} WHERE lane IN ({', '.join('?' * lanes)})"
        )

    def due_holds(self, buckets: Iterable[int], limit: int) -> str:
        """Held lanes that are to be tried again, each with its first message. The parameter is the destination."""
        columns = ", ".join(f"w.{name}" for name in f"id, {_MESSAGE}".split(", "))
        return self._dialect.markers(
            f"SELECT h.bucket, h.lane, {columns} FROM {self._held} h"
            f" LEFT JOIN {self._waiting} w ON w.id = h.first_id AND w.bucket = -1 - h.bucket"
            f" WHERE h.due_at <= {self._dialect.now_us} AND h.bucket IN {_list(buckets)}"
            " AND (w.destination = ? OR w.id IS NULL)"
            f" ORDER BY h.due_at LIMIT {limit:d}"
        )

    def set_aside(self, numbers: Sequence[int]) -> str:
        """Move messages to the held ones."""
        return f"UPDATE {self._waiting} SET bucket = -1 - bucket WHERE id IN {_list(numbers)} AND bucket >= 0"

    def set_aside_held(self, numbers: Sequence[int]) -> str:
        """Move messages to the held ones if their lanes are held."""
        return (
            f"UPDATE {self._waiting} SET bucket = -1 - bucket WHERE id IN {_list(numbers)} AND bucket >= 0"
            f" AND EXISTS (SELECT 1 FROM {self._held} h"
            f" WHERE h.bucket = {self._waiting}.bucket AND h.lane = {self._waiting}.lane)"
        )

    def free_unheld(self, buckets: Iterable[int], *, of_one: bool) -> str:
        """Move messages back whose lanes are not held; `of_one`: the parameter is a destination."""
        aside = (-1 - bucket for bucket in buckets)
        return self._dialect.markers(
            f"UPDATE {self._waiting} SET bucket = -1 - bucket WHERE bucket IN {_list(aside)}"
            f"{' AND destination = ?' if of_one else ''} AND NOT EXISTS (SELECT 1 FROM {self._held} h"
            f" WHERE h.bucket = -1 - {self._waiting}.bucket AND h.lane = {self._waiting}.lane)"
        )

    def due(self, buckets: Iterable[int], limit: int) -> str:
        """The delayed messages whose time has come. The parameter is the destination."""
        return self._dialect.markers(
            f"SELECT id FROM {self._delayed} WHERE due_at <= {self._dialect.now_us}"
            f" AND bucket IN {_list(buckets)} AND destination = ? ORDER BY due_at, id LIMIT {limit:d}"
        )

    def lock_due(self, numbers: Sequence[int]) -> str:
        """Those of these delayed messages that are still there."""
        lock = "" if self._dialect.name == "sqlite" else " FOR UPDATE"
        return f"SELECT id FROM {self._delayed} WHERE id IN {_list(numbers)} ORDER BY id{lock}"

    def move(self, numbers: Sequence[int]) -> str:
        """Let delayed messages wait for the relay from when their time came on, in the order of their times."""
        return (
            f"INSERT INTO {self._waiting} ({_MESSAGE}) SELECT {_CONTENT}, due_at FROM {self._delayed}"
            f" WHERE id IN {_list(numbers)} ORDER BY due_at, id"
        )

    def forget_delayed(self, numbers: Sequence[int]) -> str:
        """Delete delayed messages."""
        return f"DELETE FROM {self._delayed} WHERE id IN {_list(numbers)}"

    def take(self, slots: Sequence[int]) -> str:
        """Take free buckets. The parameters are the owner, twice the lease, and the destination."""
        return self._dialect.markers(
            f"UPDATE {self._leases} SET owner = ?, lease_us = ?, lease_until = {self._dialect.now_us} + ?"
            f" WHERE destination = ? AND slot IN {_list(slots)} AND {self._free}"
        )

    def leave(self, slots: Sequence[int]) -> str:
        """Give buckets back. The parameters are the destination and the owner."""
        return self._dialect.markers(
            f"UPDATE {self._leases} SET lease_until = 0"
            f" WHERE destination = ? AND slot IN {_list(slots)} AND owner = ?"
        )


def _list(numbers: Iterable[int]) -> str:
    return f"({', '.join(f'{number:d}' for number in numbers)})"
