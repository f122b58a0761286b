"""OutboxAdmin: what a person asks and does about the messages of an outbox."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from idempotent.admin import Finding
from idempotent.observe import OutboxStats
from idempotent.outbox.headers import decoded_headers
from idempotent.outbox.health import outbox_findings
from idempotent.outbox.outbox import Outbox
from idempotent.schema import outbox_name
from idempotent.stores.sql.cursor import Row, execute, query
from idempotent.stores.sql.dialects import SqlDialect
from idempotent.values import value


@value
class Listed:
    """A message in the outbox, without its body.

    Attributes:
        message_id: its id.
        subject: queue, destination or topic.
        order_key: its order key.
        destination: the name of its broker; empty: the only one.
        age_s: seconds since it was sent.
        size: bytes of its body; None: it has no body.
        attempts: how often the broker refused it.
        retry_in_s: seconds until it, or the message that it waits behind, is tried again, 0 if that is due; None: it is
            not held, or what says so is gone.
        reason: why the broker refused it.
        waits_behind: the id of the refused message of the same order key.
        due_in_s: seconds until it may be published, 0 if that is due; None: it is not delayed.
        held: it is not published before it is retried, or the message that it waits behind.
    """

    message_id: str
    subject: str
    order_key: str | None
    destination: str
    age_s: float
    size: int | None
    attempts: int
    retry_in_s: float | None
    reason: str | None
    waits_behind: str | None = None
    due_in_s: float | None = None
    held: bool = False


class OutboxAdmin:
    """Questions and changes about the messages of an outbox. Relays may run meanwhile.

    Args:
        outbox: the outbox.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._store = outbox.store
        self._name: Final = outbox_name(outbox.table)

    def stats(self) -> OutboxStats:
        """How much is in the outbox.

        Raises:
            StoreError: the database failed or did not answer.
        """
        return self._store.stats()

    def findings(self) -> Iterator[Finding]:
        """What keeps messages from being published, for `idempotent doctor`. Changes nothing.

        Raises:
            StoreError: the database failed or did not answer.
        """
        yield from outbox_findings(self._store, self._name)

    def listed(self, limit: int, *, held: bool = False, message_id: str | None = None) -> list[Listed]:
        """Messages that wait, in the order of their rows; then those that are delayed.

        Args:
            limit: the most messages.
            held: only those that are held.
            message_id: only those with this id.

        Raises:
            StoreError: the database failed or did not answer.
        """
        dialect = self._store.connections.dialect
        waiting, holds = dialect.quoted(self._name), dialect.quoted(f"{self._name}_held")
        where = [
            part
            for part, wanted in (("w.bucket < 0", held), (_has_id(dialect, "w.message_id"), message_id))
            if wanted
        ]
        statement = (
            f"SELECT w.message_id, w.subject, w.order_key, w.destination, {dialect.now_us} - w.created_at,"
            f" LENGTH(w.body), h.attempts, h.due_at - {dialect.now_us}, h.reason, f.message_id, w.id - h.first_id,"
            f" w.bucket"
            f" FROM {waiting} w LEFT JOIN {holds} h ON h.bucket = -1 - w.bucket AND h.lane = w.lane"
            f" LEFT JOIN {waiting} f ON f.id = h.first_id"
            f"{' WHERE ' + ' AND '.join(where) if where else ''} ORDER BY w.id LIMIT ?"
        )
        parameters = (limit,) if message_id is None else (message_id, limit)
        rows = self._store.connections.run(query, dialect.markers(statement), parameters)
        found = [_listed(row) for row in rows]
        return found if held else [*found, *self._delayed(limit - len(found), message_id)]

    def _delayed(self, limit: int, message_id: str | None) -> list[Listed]:
        if limit <= 0:
            return []
        dialect = self._store.connections.dialect
        statement = (
            f"SELECT message_id, subject, order_key, destination, {dialect.now_us} - created_at, LENGTH(body),"
            f" due_at - {dialect.now_us} FROM {dialect.quoted(f'{self._name}_delayed')}"
            f"{'' if message_id is None else f' WHERE {_has_id(dialect)}'} ORDER BY due_at, id LIMIT ?"
        )
        parameters = (limit,) if message_id is None else (message_id, limit)
        rows = self._store.connections.run(query, dialect.markers(statement), parameters)
        return [
            Listed(name, subject, key, to, age_us / 1e6, size, 0, None, None, due_in_s=_left(due_us))
            for name, subject, key, to, age_us, size, due_us in rows
        ]

    def body(self, message_id: str) -> bytes | None:
        """The body of the first message with this id; None: it has none, or there is no such message."""
        return self._first("body", message_id)

    def headers(self, message_id: str) -> dict[str, Any]:
        """The headers of the first message with this id; empty: it has none, or there is no such message."""
        return decoded_headers(self._first("headers", message_id))

    def _first(self, column: str, message_id: str) -> bytes | None:
        dialect = self._store.connections.dialect
        for name in (self._name, f"{self._name}_delayed"):
            statement = (
                f"SELECT {column} FROM {dialect.quoted(name)} WHERE {_has_id(dialect)} ORDER BY id LIMIT 1"
            )
            rows = self._store.connections.run(query, dialect.markers(statement), (message_id,))
            if rows:
                return None if rows[0][0] is None else bytes(rows[0][0])
        return None

    def retry(self, message_id: str | None = None) -> int:
        """Let relays try held messages again at once: the lane of this one, or all. Returns how many lanes."""
        dialect = self._store.connections.dialect
        waiting, holds = dialect.quoted(self._name), dialect.quoted(f"{self._name}_held")
        change = f"UPDATE {holds} SET due_at = 0"
        parameters: Sequence[str] = ()
        if message_id is not None:
            change += (
                f" WHERE EXISTS (SELECT 1 FROM {waiting} w WHERE {_has_id(dialect, 'w.message_id')}"
                f" AND w.bucket = -1 - {holds}.bucket AND w.lane = {holds}.lane)"
            )
            parameters = (message_id,)
        return self._store.connections.run(execute, dialect.markers(change), parameters)

    def free(self) -> int:
        """Let relays publish messages that are held although what says why is gone. Returns how many messages.

        A relay does the same once in a while.
        """
        return self._store.free_unheld(self._store.sql.buckets)

    def drop(self, message_id: str) -> int:
        """Delete the first message with this id, which is then never published. What waits for it goes on.

        Returns how many rows: 0 or 1.
        """
        self.retry(message_id)
        dialect = self._store.connections.dialect
        for name in (self._name, f"{self._name}_delayed"):
            quoted = dialect.quoted(name)
            first = f"SELECT MIN(id) FROM {quoted} WHERE {_has_id(dialect)}"
            found = self._store.connections.run(query, dialect.markers(first), (message_id,))[0][0]
            if found is not None:
                delete = dialect.markers(f"DELETE FROM {quoted} WHERE id = ? AND {_has_id(dialect)}")
                return self._store.connections.run(execute, delete, (found, message_id))
        return 0


def _has_id(dialect: SqlDialect, column: str = "message_id") -> str:
    """The condition that it is exactly this id: MySQL's collations take `id` and `id ` for the same."""
    return f"CAST({column} AS BINARY) = ?" if dialect.name == "mysql" else f"{column} = ?"


def _listed(row: Row) -> Listed:
    message_id, subject, order_key, destination, age_us, size, *hold, behind, bucket = row
    attempts, due_in_us, reason, first = hold
    is_first = behind == 0
    return Listed(
        message_id,
        subject,
        order_key,
        destination,
        age_us / 1e6,
        size,
        (attempts or 0) if is_first else 0,
        None if due_in_us is None else _left(due_in_us),
        reason if is_first else None,
        None if is_first else first,
        held=bucket < 0,
    )


def _left(due_in_us: int) -> float:
    """The seconds until a time; 0: it has come."""
    return max(due_in_us, 0) / 1e6
