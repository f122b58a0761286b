"""The servers of a pair, and the functions that harm them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from idempotent.torture import Servers
from tests.support.pairs import CHECKERS
from tests.support.services import PrivateServer
from tests.support.services.small_disk import full


def servers_of(
    broker: PrivateServer, store: PrivateServer, checker: str, *, small_disk: bool = False
) -> Servers:
    """Both servers are running; the store's disk can be filled if it is small."""
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
