"""Clusters: which servers answer behind one URL, and what Galera and proxies mean for keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from idempotent.admin import Finding, Level
from idempotent.checkers.sql.store import SqlStore
from idempotent.stores.sql.cursor import DriverConnection, Row, query, query_as_is, transaction

# A balancer that takes its servers in turn shows three of them.
_LOOKS: Final = 3
_SERVER: Final = {
    "mysql": "SELECT CONCAT(@@hostname, ':', @@port), CONCAT(@@hostname, @@port, @@server_id), @@read_only",
    "postgresql": "SELECT COALESCE(host(inet_server_addr()) || ':' || inet_server_port(), 'local'),"
    " pg_postmaster_start_time()::text, pg_is_in_recovery()",
}
_VARIABLES: Final = "SHOW VARIABLES WHERE Variable_name IN ('wsrep_on', 'wsrep_provider')"
_SIZE: Final = "SHOW STATUS LIKE 'wsrep_cluster_size'"
_ON: Final = ("on", "1", "true")


@dataclass(frozen=True, slots=True)
class Look:
    """Which server answered on a new connection.

    Attributes:
        server: its address, for people.
        identity: differs between servers.
        only_reads: whether it is a replica.
        in_transaction: whether it was asked in a transaction.
    """

    server: str
    identity: str
    only_reads: bool
    in_transaction: bool


def cluster_findings(store: SqlStore) -> list[Finding]:
    """Ask on several new connections, in a transaction and outside of one, who answers. Changes nothing.

    Raises:
        StoreError: the database did not answer.
    """
    family = store.connections.dialect.name
    if family not in _SERVER:
        return []
    looks: list[Look] = []
    for _ in range(_LOOKS):
        with closing(store.more_connections()) as fresh:
            looks += fresh.run(_look, _SERVER[family])
    galera: dict[str, str] = {}
    if family == "mysql":
        galera = dict(store.connections.run(_galera))
    return [*galera_findings(galera, looks), *server_findings(looks, has_galera=_has_galera(galera))]


def _look(driver: DriverConnection, statement: str) -> list[Look]:
    looks = [_who(query_as_is(driver, statement), in_transaction=False)]
    with transaction(driver):
        # As the checkers read: a proxy may go by more than the transaction.
        looks.append(_who(query(driver, statement), in_transaction=True))
    return looks


def _who(rows: Sequence[Row], *, in_transaction: bool) -> Look:
    ((server, identity, only_reads),) = rows
    return Look(str(server), str(identity), bool(only_reads), in_transaction)


def _galera(driver: DriverConnection) -> list[tuple[str, str]]:
    rows = [*query(driver, _VARIABLES), *query(driver, _SIZE)]
    return [(str(name).lower(), str(value).lower()) for name, value in rows]


def _has_galera(settings: Mapping[str, str]) -> bool:
    return settings.get("wsrep_on") in _ON and settings.get("wsrep_provider", "none") not in ("", "none")


def galera_findings(settings: Mapping[str, str], looks: Sequence[Look]) -> Iterator[Finding]:
    """What Galera means for keys.

    Committed transactions were lost in healthy clusters (Jepsen, March 2026, MariaDB Galera Cluster 12.1 and 12.2).

    Args:
        settings: the values of `wsrep_on`, `wsrep_provider` and `wsrep_cluster_size` in small letters; without Galera,
            some or all of them are missing.
        looks: who answered.
    """
    if not _has_galera(settings):
        return
    writers = _writers(looks)
    size = settings.get("wsrep_cluster_size", "?")
    if len(writers) > 1:
        yield Finding(
            Level.ERROR,
            f"Galera with several writers ({', '.join(writers)}): two of them may claim one key, and committed "
            "transactions were lost in such clusters",
            "let the URL, or the proxy behind it, lead to one node, and to another only when that one is gone",
        )
    else:
        yield Finding(
            Level.WARNING,
            f"Galera, nodes: {size}. Committed transactions were lost in such clusters (Jepsen, 2026-03), and with one "
            "its key: the effect repeats",
            "write to one node alone, and take a database without Galera if an effect must not repeat",
        )


def server_findings(looks: Sequence[Look], *, has_galera: bool) -> Iterator[Finding]:
    """Whether a balancer or proxy leads to servers that do not have the same keys at the same time.

    Args:
        looks: who answered.
        has_galera: several writers of Galera are reported already.
    """
    writers = _writers(looks)
    inside = {each.identity for each in looks if each.in_transaction}
    replicas = dict.fromkeys(each.server for each in looks if each.in_transaction and each.only_reads)
    if replicas:
        yield Finding(
            Level.ERROR,
            f"transactions are led to a server that only reads: {', '.join(replicas)}",
            "let the URL, or the proxy behind it, lead all transactions to the primary; PostgreSQL's URL may say "
            "target_session_attrs=read-write",
        )
    if len(writers) > 1 and not has_galera:
        yield Finding(
            Level.ERROR,
            f"new connections are led to several servers that write: {', '.join(writers)}; a key of one is not in "
            "another, or not yet",
            "let the URL, or the proxy behind it, lead to one of them",
        )
    elsewhere = dict.fromkeys(each.server for each in looks if each.identity not in inside)
    if elsewhere:
        yield Finding(
            Level.WARNING,
            f"a proxy leads reads outside of transactions to other servers: {', '.join(elsewhere)}. The checkers read "
            "in transactions; handlers may see what is old",
            "docs/databases.md, Proxies that split reads, says what the proxy has to do",
        )


def _writers(looks: Sequence[Look]) -> list[str]:
    """The servers that answered in a transaction and are no replicas."""
    writers = {each.identity: each.server for each in looks if each.in_transaction and not each.only_reads}
    return sorted(writers.values())
