"""Which faults can happen in a run, and why the others cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from idempotent.torture.addresses import address_of
from idempotent.torture.clocks import no_wrong_clocks
from idempotent.torture.faults.kinds import FaultKind
from idempotent.torture.faults.servers import Servers
from idempotent.torture.stores import Store

_NO_PROXY: Final = "no proxy can stand before a file, several servers, or TLS"
OF_THE_STORE: Final = frozenset(
    {
        FaultKind.CUT_STORE,
        FaultKind.LOSE_STORE_ANSWER,
        FaultKind.LOSE_STORE_QUESTION,
        FaultKind.LATE_STORE_QUESTION,
        FaultKind.STALL_STORE,
        FaultKind.DELAY_STORE,
    }
)
OF_THE_BROKER: Final = frozenset(
    {FaultKind.CUT_BROKER, FaultKind.LOSE_BROKER_ANSWER, FaultKind.STALL_BROKER, FaultKind.DELAY_BROKER}
)
# The steps that a consumer passes; those of a batch of Spark are others.
_POINTS: Final = ("claim", "effect", "complete", "release", "ack")


@dataclass(frozen=True, slots=True)
class Offers:
    """What can be done.

    Attributes:
        kinds: the faults, in the order of their enum.
        missing: the others, with the reason.
        points: crash points that consumers pass.
    """

    kinds: tuple[FaultKind, ...]
    missing: Mapping[FaultKind, str]
    points: tuple[str, ...]


def offers(servers: Servers, store: Store) -> Offers:
    """What can be done to these servers."""
    reasons = {kind: _missing(kind, servers, store) for kind in FaultKind}
    steps = (*_POINTS, "commit" if store.is_transactional else "renew")
    return Offers(
        kinds=tuple(kind for kind, reason in reasons.items() if reason is None),
        missing={kind: reason for kind, reason in reasons.items() if reason is not None},
        points=tuple(f"{when}_{step}" for step in steps for when in ("before", "after")),
    )


def _missing(kind: FaultKind, servers: Servers, store: Store) -> str | None:
    if kind in OF_THE_STORE and address_of(servers.checker_url) is None:
        return _NO_PROXY
    if kind in OF_THE_BROKER and address_of(servers.broker_url) is None:
        return _NO_PROXY
    match kind:
        case FaultKind.SHIFT_CLOCK if store.is_file:
            return "SQLite's clock is its machine's"
        case FaultKind.SHIFT_CLOCK if servers.broker_url.startswith("kafka:"):
            return "under libfaketime the waits of librdkafka end at once or never"
        case FaultKind.SHIFT_CLOCK:
            return no_wrong_clocks()
        case FaultKind.RESTART_STORE if servers.restart_store is None:
            return "nobody said how (--restart-store)"
        case FaultKind.RESTART_BROKER if servers.restart_broker is None:
            return "nobody said how (--restart-broker)"
        case FaultKind.FORGET | FaultKind.EVICT if not store.is_redis:
            return "only Redis does such a thing"
        case FaultKind.FILL_DISK if servers.full_disk is None:
            return "the store's disk cannot be filled from here"
        case _:
            return None
