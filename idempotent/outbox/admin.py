"""OutboxAdmin: what a person asks and does about the messages of an outbox, and whether they are published."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import MetaData

from idempotent.admin import Finding, Level
from idempotent.errors import SchemaError
from idempotent.logs import EventLog
from idempotent.observe import OutboxStats
from idempotent.outbox.entries import BUCKETS
from idempotent.outbox.headers import decoded_headers
from idempotent.outbox.outbox import Outbox
from idempotent.outbox.store import AHEAD_US, OutboxStore
from idempotent.schema import outbox_tables
from idempotent.stores.sql.cursor import Row
from idempotent.stores.sql.grants import RIGHTS
from idempotent.stores.sql.rights import grant_on, grant_to_user, missing_rights
from idempotent.values import value

log = EventLog(__name__)

_OLD_S: Final = 300.0
# A relay deletes what it publishes: PostgreSQL needs VACUUM to use the space again, and reads pass over what is dead.
_DEAD_ROWS: Final = 100_000
_DEAD_ROWS_OF: Final = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = to_regclass(?)"
# What does not happen without one of the RIGHTS on a table.
_HOLDS: Final = "a relay cannot hold what a broker refuses"
_DELAYED: Final = "a relay does not publish what was delayed"
_UNREAD: Final = "a relay, and this command, cannot read it"
_LEASES: Final = "a relay gets nothing to publish"
_RIGHTS: Final = {
    "": (_UNREAD, "nothing can be sent", _HOLDS, "a relay publishes nothing more"),
    "_delayed": (_UNREAD, "nothing can be sent with delay_s", _DELAYED, _DELAYED),
    "_held": (_UNREAD, _HOLDS, _HOLDS, "what was held is not published"),
    "_leases": (_UNREAD, _LEASES, _LEASES, "relays that died are never forgotten"),
}
# An identity column needs no right on its sequence, a serial one does.
_NUMBERING: Final = (
    "SELECT s, has_sequence_privilege(s, 'USAGE, UPDATE') FROM pg_get_serial_sequence('{table}', 'id') AS s"
    " WHERE s IS NOT NULL AND NOT EXISTS (SELECT 1 FROM pg_attribute"
    " WHERE attrelid = to_regclass('{table}') AND attname = 'id' AND attidentity <> '')"
)


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
        store = self._store
        try:
            denied = [*_rights(store)]
            if any(each.final for each in denied):
                yield from denied
                return
            denied += _sequences(store)
            stats = store.stats()
        except SchemaError:
            return  # an application's own history need not have an outbox; what has to be there is checked elsewhere
        found = [*denied, *_unpublished(store, stats), *_clock(store), *_dead(store)]
        if found:
            yield from found
        elif stats.oldest_s is None:
            yield Finding(Level.OK, f"the outbox {store.name} is empty; relays at work: {stats.relays}")
        else:
            yield Finding(
                Level.OK,
                f"the outbox {store.name}: {stats.waiting:,} to publish, the oldest for {stats.oldest_s:,.0f} s; "
                f"relays at work: {stats.relays}",
            )

    def listed(self, limit: int, *, held: bool = False, message_id: str | None = None) -> list[Listed]:
        """Messages that wait, in the order of their rows; then those that are delayed.

        Args:
            limit: the most messages.
            held: only those that are held.
            message_id: only those with this id.

        Raises:
            StoreError: the database failed or did not answer.
        """
        where = [
            part
            for part, wanted in (("w.bucket < 0", held), (self._has_id("w.message_id"), message_id))
            if wanted
        ]
        statement = (
            "SELECT w.message_id, w.subject, w.order_key, w.destination, {now} - w.created_at, LENGTH(w.body),"
            " h.attempts, h.due_at - {now}, h.reason, f.message_id, w.id - h.first_id, w.bucket"
            " FROM {waiting} w LEFT JOIN {held} h ON h.bucket = -1 - w.bucket AND h.lane = w.lane"
            " LEFT JOIN {waiting} f ON f.id = h.first_id"
            f"{' WHERE ' + ' AND '.join(where) if where else ''} ORDER BY w.id LIMIT ?"
        )
        parameters = (limit,) if message_id is None else (message_id, limit)
        found = [_listed(row) for row in self._store.ask(statement, *parameters)]
        return found if held else [*found, *self._delayed(limit - len(found), message_id)]

    def _delayed(self, limit: int, message_id: str | None) -> list[Listed]:
        if limit <= 0:
            return []
        statement = (
            "SELECT message_id, subject, order_key, destination, {now} - created_at, LENGTH(body), due_at - {now}"
            f" FROM {{delayed}}{'' if message_id is None else f' WHERE {self._has_id()}'} ORDER BY due_at, id LIMIT ?"
        )
        rows = self._store.ask(statement, *((limit,) if message_id is None else (message_id, limit)))
        return [
            Listed(name, subject, key, to, age_us / 1e6, size, 0, None, None, due_in_s=_left(due_us))
            for name, subject, key, to, age_us, size, due_us in rows
        ]

    def body(self, message_id: str) -> bytes | None:
        """The body of the first message with this id; None: it has none, or there is no such message."""
        _, body = self._first("body", message_id) or ("", None)
        return None if body is None else bytes(body)

    def headers(self, message_id: str) -> dict[str, Any]:
        """The headers of the first message with this id; empty: it has none, or there is no such message."""
        _, headers = self._first("headers", message_id) or ("", None)
        return decoded_headers(None if headers is None else bytes(headers))

    def _first(self, columns: str, message_id: str) -> tuple[Any, ...] | None:
        """The table with the first message of this id, and these columns of its row; None: no message has it."""
        for table in ("{waiting}", "{delayed}"):
            found = f"SELECT {columns} FROM {table} WHERE {self._has_id()} ORDER BY id LIMIT 1"
            for row in self._store.ask(found, message_id):
                return table, *row
        return None

    def _has_id(self, column: str = "message_id") -> str:
        """The condition that it is exactly this id: MySQL's collations take `id` and `id ` for the same."""
        is_mysql = self._store.connections.dialect.name == "mysql"
        return f"CAST({column} AS BINARY) = ?" if is_mysql else f"{column} = ?"

    def retry(self, message_id: str | None = None) -> int:
        """Let relays try held messages again at once: the lane of this one, or all. Returns how many lanes."""
        if message_id is None:
            return self._store.change("UPDATE {held} SET due_at = 0")
        return self._store.change(
            f"UPDATE {{held}} SET due_at = 0 WHERE EXISTS (SELECT 1 FROM {{waiting}} w"
            f" WHERE {self._has_id('w.message_id')} AND w.bucket = -1 - {{held}}.bucket AND w.lane = {{held}}.lane)",
            message_id,
        )

    def free(self) -> int:
        """Let relays publish messages that are held although what says why is gone. Returns how many messages.

        A relay does the same once in a while.
        """
        return self._store.free_unheld(range(BUCKETS))

    def drop(self, message_id: str, *, by: str = "") -> int:
        """Delete the first message with this id, which is then never published. What waits for it goes on.

        It is logged (`outbox_message_dropped`), with `by`: who does it. Returns how many rows: 0 or 1.
        """
        self.retry(message_id)
        found = self._first("id, subject, order_key", message_id)
        if found is None:
            return 0
        table, row, subject, order_key = found
        dropped = self._store.change(
            f"DELETE FROM {table} WHERE id = ? AND {self._has_id()}", row, message_id
        )
        about = {"subject": subject, "order_key": order_key, "messages": dropped, "by": by}
        log.warning("outbox_message_dropped", extra={"message_id": message_id, **about})
        return dropped


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


def _rights(store: OutboxStore) -> Iterator[Finding]:
    """Whether the user of this connection may do what services and relays do."""
    connections = store.connections
    tables = outbox_tables(MetaData(), store.table)
    lacking = {
        table.name: missing_rights(connections, table)
        for table in (tables.waiting, tables.delayed, tables.held, tables.leases)
    }
    if all(missing == [*RIGHTS] for missing in lacking.values()):
        grants = " ".join(grant_on(connections, table) for table in lacking)
        yield Finding(
            Level.OK,
            f"this user has no right on the outbox {store.name}, so it is not looked at",
            f"only for a user whose services send or whose relays publish, type: {grants}",
            final=True,
        )
        return
    for table, missing in lacking.items():
        if missing:
            needed = dict(zip(RIGHTS, _RIGHTS[table.removeprefix(store.name)], strict=True))
            named = ["SELECT"] if "SELECT" in missing else missing  # nothing can be said without it
            causes = dict.fromkeys(needed[right] for right in named)
            yield Finding(
                Level.ERROR,
                f"this user has no right to {', '.join(named)} in {table}: {', and '.join(causes)}",
                f"type, as a user who may grant it: {grant_on(connections, table)} Likewise to the user of each "
                "relay; a service that only sends needs INSERT",
                final="SELECT" in missing,
            )


def _sequences(store: OutboxStore) -> Iterator[Finding]:
    """Whether the user may number new rows: on PostgreSQL that is a right of its own."""
    if store.connections.dialect.name != "postgresql":
        return
    for table, suffix in (("{waiting}", ""), ("{delayed}", "_delayed")):
        for sequence, allowed in store.ask(_NUMBERING.format(table=table)):
            if not allowed:
                granted = grant_to_user(store.connections, ["USAGE"], f"SEQUENCE {sequence}")
                yield Finding(
                    Level.ERROR,
                    f"this user has no right to USAGE of the sequence {sequence}: {_RIGHTS[suffix][1]}",
                    f"type, as a user who may grant it: {granted} Likewise to the user of each service and relay",
                )


def _unpublished(store: OutboxStore, stats: OutboxStats) -> Iterator[Finding]:
    """Whether relays are at work for all that waits, how old it is, and whether a broker refuses something."""
    unpublished = stats.waiting + stats.held + stats.delayed
    if unpublished and not stats.relays:
        yield Finding(
            Level.ERROR,
            f"no relay is at work, and messages wait in {store.name}: {unpublished:,}",
            f"let a Worker have services=[Relay(...)], or type: {store.command('relay')} --broker URL",
        )
    elif stats.oldest_s is not None and stats.oldest_s > _OLD_S:
        yield Finding(
            Level.WARNING,
            f"messages wait in {store.name}, the oldest for {stats.oldest_s:,.0f} s: {stats.waiting:,}",
            "the log of the relays says why: relay_waits or relay_has_no_publisher",
        )
    for destination, messages in store.unserved().items() if stats.relays else ():
        broker = f"the broker {destination!r}" if destination else "the broker without a name"
        yield Finding(
            Level.ERROR,
            f"messages wait in {store.name} for {broker}, to which no relay publishes: {messages:,}",
            "give the relays a publisher of that name, as `send(to=...)` says it: Relay(outbox, {name: adapter}), or "
            f"type: {store.command('relay')} --broker {shlex.quote(f'{destination}=URL' if destination else 'URL')}",
        )
    if stats.held:
        yield Finding(
            Level.WARNING,
            f"{stats.held:,} messages are held in {store.name}, behind {stats.lanes:,} that a broker refuses",
            f"{store.command('outbox', 'list', '--held')}; mend the cause, then {store.command('outbox', 'retry')}",
        )


def _clock(store: OutboxStore) -> Iterator[Finding]:
    """Whether messages were delayed or held later than now: the clock of the database has gone back."""
    wait = f"wait, or lower due_at in {store.name}_delayed: microseconds"
    retry = f"{store.command('outbox', 'retry')} lets relays try them again at once"
    for table, column, what, hint in (
        ("delayed", "created_at", "delayed", wait),
        ("held", "held_at", "refused", retry),
    ):
        statement = (
            f"SELECT COUNT(*), MAX({column}) - {{now}}, MAX(due_at) - {{now}} FROM {{{table}}}"
            f" WHERE {column} > {{now}} + {AHEAD_US:d}"
        )
        found, back_us, due_us = store.ask(statement)[0]
        if found:
            yield Finding(
                Level.WARNING,
                f"the database's clock has gone back, by {back_us / 1e6:,.0f} s or more: {found:,} {what} messages in "
                f"{store.name}_{table} wait longer by that, for up to {due_us / 1e6:,.0f} s",
                hint,
            )


def _dead(store: OutboxStore) -> Iterator[Finding]:
    if store.connections.dialect.name != "postgresql":
        return
    counted = store.ask(_DEAD_ROWS_OF, store.text("{waiting}"))
    dead = counted[0][0] if counted else 0
    if dead > _DEAD_ROWS:
        yield Finding(
            Level.WARNING,
            f"{dead:,} dead rows in {store.name} have not been vacuumed: reads pass over them",
            f"end transactions that stay open, and type: ALTER TABLE {store.name} SET (autovacuum_vacuum_scale_factor ="
            " 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0)",
        )
