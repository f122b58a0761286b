"""Every broker with every checker, and the servers that they need."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass

from rich.console import Console

from tests.support.services import (
    PrivateActiveMq,
    PrivateKafka,
    PrivateMariaDb,
    PrivatePostgres,
    PrivateRabbitMq,
    PrivateRedis,
    PrivateServer,
)

BROKERS: dict[str, type[PrivateServer]] = {
    "rabbitmq": PrivateRabbitMq,
    "activemq": PrivateActiveMq,
    "kafka": PrivateKafka,
}


@dataclass(frozen=True)
class CheckerKind:
    """A checker on a store of its own."""

    prefix: str
    store: type[PrivateServer] | None
    options: tuple[str, ...] = ()
    query: str = ""
    """Of the broker's URL."""
    outbox: bool = False
    """Handlers also send through an outbox."""


CHECKERS: dict[str, CheckerKind] = {
    "transactional-mariadb": CheckerKind("transactional+", PrivateMariaDb),
    "transactional-postgres": CheckerKind("transactional+", PrivatePostgres),
    "sql-mariadb": CheckerKind("", PrivateMariaDb),
    # A restarted Redis must keep what it has acknowledged.
    "redis": CheckerKind("", PrivateRedis, ("--appendonly", "yes", "--appendfsync", "always")),
    "offsets-mariadb": CheckerKind("offsets+", PrivateMariaDb),
    # Kafka itself is the store.
    "exactly-once": CheckerKind("attempts://", None, query="semantics=exactly_once"),
    "outbox-mariadb": CheckerKind("transactional+", PrivateMariaDb, outbox=True),
    "outbox-postgres": CheckerKind("transactional+", PrivatePostgres, outbox=True),
}
# With the others every broker is paired.
_PAIRED_WITH = {
    "offsets-mariadb": ["kafka"],
    "exactly-once": ["kafka"],
}
PAIRS = [
    (broker, checker)
    for broker in BROKERS
    for checker in CHECKERS
    if broker in _PAIRED_WITH.get(checker, BROKERS)
]


def is_covered(broker: str, checker: str) -> bool:
    """Whether another pair does all that this one does: that with an outbox on the same servers."""
    return (broker, checker.replace("transactional", "outbox")) in set(PAIRS) - {(broker, checker)}


def started(stack: ExitStack, console: Console, server: PrivateServer) -> PrivateServer:
    """The server, running until the stack is closed. Ends the program if it cannot be started."""
    missing = server.missing()
    if missing:
        sys.exit(f"{server.name} cannot be started here: {missing}")
    stack.callback(server.close)
    with console.status(f"Starting {server.name}"):
        server.start()
    return server
