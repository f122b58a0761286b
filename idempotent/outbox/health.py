"""outbox_findings: checks whether what is in an outbox is being published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from sqlalchemy import MetaData

from idempotent.admin import Finding, Level
from idempotent.errors import SchemaError
from idempotent.observe.events import OutboxStats
from idempotent.outbox.store import OutboxStore
from idempotent.schema import outbox_tables
from idempotent.stores.sql.cursor import DriverConnection, query
from idempotent.stores.sql.grants import RIGHTS
from idempotent.stores.sql.rights import grant_on, grant_to_user, missing_rights

_OLD_S: Final = 300.0
# A relay deletes what it publishes: PostgreSQL needs VACUUM to use the space again, and reads pass over what is dead.
_DEAD_ROWS: Final = 100_000
_DEAD_ROWS_OF: Final = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = to_regclass(?)"
# What does not happen without a right on one of the tables.
_HOLDS: Final = "a relay cannot hold what a broker refuses"
_DELAYED: Final = "a relay does not publish what was delayed"
_UNREAD: Final = "a relay, and this command, cannot read it"
_LEASES: Final = "a relay gets nothing to publish"
_RIGHTS: Final = {
    "": {
        "SELECT": _UNREAD,
        "INSERT": "nothing can be sent",
        "UPDATE": _HOLDS,
        "DELETE": "a relay publishes nothing more",
    },
    "_delayed": {
        "SELECT": _UNREAD,
        "INSERT": "nothing can be sent with delay_s",
        "UPDATE": _DELAYED,
        "DELETE": _DELAYED,
    },
    "_held": {
        "SELECT": _UNREAD,
        "INSERT": _HOLDS,
        "UPDATE": _HOLDS,
        "DELETE": "what was held is not published",
    },
    "_leases": {
        "SELECT": _UNREAD,
        "INSERT": _LEASES,
        "UPDATE": _LEASES,
        "DELETE": "relays that died are never forgotten",
    },
}
# An identity column needs no right on its sequence, a serial one does.
_NUMBERING: Final = (
    "SELECT s, has_sequence_privilege(s, 'USAGE, UPDATE') FROM pg_get_serial_sequence('{table}', 'id') AS s"
    " WHERE s IS NOT NULL AND NOT EXISTS (SELECT 1 FROM pg_attribute"
    " WHERE attrelid = to_regclass('{table}') AND attname = 'id' AND attidentity <> '')"
)


def outbox_findings(store: OutboxStore, name: str) -> Iterator[Finding]:
    """Check what waits and for how long, whether a relay is at work and may work, and how much of the table is dead.

    Args:
        store: the outbox.
        name: its table.

    Raises:
        StoreError: the database failed or did not answer.
    """
    try:
        denied = [*_rights(store, name)]
        if any(each.final for each in denied):
            yield from denied
            return
        denied += _sequences(store, name)
        stats = store.stats()
    except SchemaError:
        return  # an application's own history need not have an outbox; what has to be there is checked elsewhere
    unserved = store.unserved() if stats.relays else {}
    found = [
        *denied,
        *_waiting(stats, name),
        *_unserved(unserved, name),
        *_held(store, stats, name),
        *_dead(store, name),
    ]
    yield from found or [Finding(Level.OK, _figures(stats, name))]


def _figures(stats: OutboxStats, name: str) -> str:
    if stats.oldest_s is None:
        return f"the outbox {name} is empty; relays at work: {stats.relays}"
    return (
        f"the outbox {name}: {stats.waiting:,} to publish, the oldest for {stats.oldest_s:,.0f} s; relays at work: "
        f"{stats.relays}"
    )


def _rights(store: OutboxStore, name: str) -> Iterator[Finding]:
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
            f"this user has no right on the outbox {name}, so it is not looked at",
            f"only for a user whose services send or whose relays publish, type: {grants}",
            final=True,
        )
        return
    for table, missing in lacking.items():
        if missing:
            needed = _RIGHTS[table.removeprefix(name)]
            named = ["SELECT"] if "SELECT" in missing else missing  # nothing can be said without it
            causes = dict.fromkeys(needed[right] for right in named)
            yield Finding(
                Level.ERROR,
                f"this user has no right to {', '.join(named)} in {table}: {', and '.join(causes)}",
                f"type, as a user who may grant it: {grant_on(connections, table)} Likewise to the user of each "
                "relay; a service that only sends needs INSERT",
                final="SELECT" in missing,
            )


def _sequences(store: OutboxStore, name: str) -> Iterator[Finding]:
    """Whether the user may number new rows: on PostgreSQL that is a right of its own."""
    if store.connections.dialect.name != "postgresql":
        return
    for suffix in ("", "_delayed"):
        table = store.connections.dialect.quoted(f"{name}{suffix}")
        for sequence, allowed in store.connections.run(query, _NUMBERING.format(table=table)):
            if not allowed:
                granted = grant_to_user(store.connections, ["USAGE"], f"SEQUENCE {sequence}")
                yield Finding(
                    Level.ERROR,
                    f"this user has no right to USAGE of the sequence {sequence}: {_RIGHTS[suffix]['INSERT']}",
                    f"type, as a user who may grant it: {granted} Likewise to the user of each service and relay",
                )


def _waiting(stats: OutboxStats, name: str) -> Iterator[Finding]:
    unpublished = stats.waiting + stats.held + stats.delayed
    if unpublished and not stats.relays:
        yield Finding(
            Level.ERROR,
            f"no relay is at work, and messages wait in {name}: {unpublished:,}",
            "let a Worker have services=[Relay(...)], or run `idempotent relay`",
        )
    elif stats.oldest_s is not None and stats.oldest_s > _OLD_S:
        yield Finding(
            Level.WARNING,
            f"messages wait in {name}, the oldest for {stats.oldest_s:,.0f} s: {stats.waiting + stats.held:,}",
            "the log of the relays says why: relay_waits or relay_has_no_publisher",
        )


def _unserved(unserved: Mapping[str, int], name: str) -> Iterator[Finding]:
    for destination, messages in unserved.items():
        broker = f"the broker {destination!r}" if destination else "the broker without a name"
        yield Finding(
            Level.ERROR,
            f"messages wait in {name} for {broker}, to which no relay publishes: {messages:,}",
            "give the relays a publisher of that name, as `send(to=...)` says it: Relay(outbox, {name: adapter}), or "
            "`idempotent relay --broker NAME=URL`",
        )


def _held(store: OutboxStore, stats: OutboxStats, name: str) -> Iterator[Finding]:
    if stats.held:
        yield Finding(
            Level.WARNING,
            f"{stats.held:,} messages are held in {name}, behind {stats.lanes:,} that a broker refuses",
            f"{store.command('list', '--held')}; mend the cause, then {store.command('retry')}",
        )


def _dead(store: OutboxStore, name: str) -> Iterator[Finding]:
    if store.connections.dialect.name != "postgresql":
        return
    statement = store.connections.dialect.markers(_DEAD_ROWS_OF)
    dead = store.connections.run(_dead_rows, statement, name)
    if dead > _DEAD_ROWS:
        yield Finding(
            Level.WARNING,
            f"{dead:,} dead rows in {name} have not been vacuumed: reads pass over them",
            f"end transactions that stay open, and type: ALTER TABLE {name} SET (autovacuum_vacuum_scale_factor = 0,"
            " autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0)",
        )


def _dead_rows(driver: DriverConnection, statement: str, name: str) -> int:
    counted = query(driver, statement, (f'"{name}"',))
    return int(counted[0][0]) if counted else 0
