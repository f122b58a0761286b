"""Every broker with every checker, and how their servers are started, killed and started again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from idempotent.torture import Servers
from tests.support.services import (
    PrivateActiveMq,
    PrivateKafka,
    PrivateMariaDb,
    PrivatePostgres,
    PrivateRabbitMq,
    PrivateRedis,
    PrivateServer,
)
from tests.support.services.small_disk import full

BROKERS: dict[str, type[PrivateServer]] = {
    "rabbitmq": PrivateRabbitMq,
    "activemq": PrivateActiveMq,
    "kafka": PrivateKafka,
}


@dataclass(frozen=True)
class CheckerKind:
    """A checker on a store of its own."""

    prefix: str
    store: type[PrivateServer]
    options: tuple[str, ...] = ()


CHECKERS: dict[str, CheckerKind] = {
    "transactional-mariadb": CheckerKind("transactional+", PrivateMariaDb),
    "transactional-postgres": CheckerKind("transactional+", PrivatePostgres),
    "sql-mariadb": CheckerKind("", PrivateMariaDb),
    # It must come back with what it has acknowledged.
    "redis": CheckerKind("", PrivateRedis, ("--appendonly", "yes", "--appendfsync", "always")),
    "offsets-mariadb": CheckerKind("offsets+", PrivateMariaDb),
}
PAIRS = [
    (broker, checker)
    for broker in BROKERS
    for checker in CHECKERS
    if broker == "kafka" or not checker.startswith("offsets")
]


def servers_of(
    broker: PrivateServer, store: PrivateServer, checker: str, *, small_disk: bool = False
) -> Servers:
    """Both running; the store's disk can be filled if it is small."""
    return Servers(
        broker.url if "://" in broker.url else f"kafka://{broker.url}",
        CHECKERS[checker].prefix + store.url,
        restart_broker=_restarting(broker),
        restart_store=_restarting(store),
        full_disk=partial(full, store) if small_disk else None,
    )


def _restarting(server: PrivateServer) -> Callable[[float], object]:
    def restart(down_s: float) -> None:
        server.kill()
        time.sleep(down_s)
        server.start()

    return restart
