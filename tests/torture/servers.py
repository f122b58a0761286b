"""The servers of a pair, and the functions that harm them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from tests.support.pairs import CHECKERS
from tests.support.services import PrivateRabbitMq, PrivateServer
from tests.support.services.small_disk import full
from tests.torture import Servers
from tests.torture.faults.kinds import FaultKind


def servers_of(
    broker: PrivateServer, store: PrivateServer | None, checker: str, *, small_disk: bool = False
) -> Servers:
    """Both servers are running; the store's disk can be filled if it is small."""
    kind = CHECKERS[checker]
    broker_url = broker.url if "://" in broker.url else f"kafka://{broker.url}"
    return Servers(
        f"{broker_url}?{kind.query}" if kind.query else broker_url,
        kind.prefix if store is None else kind.prefix + store.url,
        restart_broker=_restarting(broker),
        restart_store=None if store is None else _restarting(store),
        harms=dict(_harms(broker, store, small_disk=small_disk)),
    )


def _harms(
    broker: PrivateServer, store: PrivateServer | None, *, small_disk: bool
) -> Iterator[tuple[FaultKind, Callable[[str], AbstractContextManager[object]]]]:
    if small_disk and store is not None:
        yield FaultKind.FILL_DISK, lambda _: full(store)
    if isinstance(broker, PrivateRabbitMq):
        yield FaultKind.MEMORY_ALARM, lambda _: broker.short_of_memory()
        yield FaultKind.FULL_LETTERS, lambda name: broker.refusing(f"^{name}.*dead$")
        # Not the queue to which they return: a classic queue that expires a message drops it if that one is full.
        # Delays are short, so a queue with room for one message would refuse few.
        yield FaultKind.FULL_RETRIES, lambda name: broker.refusing(f"^{name}.*retry.[0-9]+$", above=0)


def _restarting(server: PrivateServer) -> Callable[[float], object]:
    def restart(down_s: float) -> None:
        server.kill()
        time.sleep(down_s)
        server.start()

    return restart
