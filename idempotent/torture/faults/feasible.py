"""FeasibleFaults: which faults can happen in a run, and why the others cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from idempotent.torture.addresses import address_of
from idempotent.torture.clocks import no_wrong_clocks
from idempotent.torture.faults.kinds import FaultKind, Target
from idempotent.torture.faults.servers import Servers
from idempotent.torture.stores import Store

# The steps of a consumer; a Spark batch has others.
_STEPS: Final = ("claim", "effect", "complete", "release", "ack")


@dataclass(frozen=True, slots=True)
class FeasibleFaults:
    """What can be done to the servers and consumers of a run.

    Attributes:
        kinds: the faults, in the order of their enum.
        missing: the other faults, with the reason.
        points: crash points that consumers pass.
    """

    kinds: tuple[FaultKind, ...]
    missing: Mapping[FaultKind, str]
    points: tuple[str, ...]

    @classmethod
    def of(cls, servers: Servers, store: Store, *, is_kafka: bool) -> FeasibleFaults:
        """What can be done to these servers."""
        reasons = {kind: _obstacle(kind, servers, store, is_kafka=is_kafka) for kind in FaultKind}
        steps = (*_STEPS, "commit" if store.is_transactional else "renew")
        return cls(
            kinds=tuple(kind for kind, reason in reasons.items() if reason is None),
            missing={kind: reason for kind, reason in reasons.items() if reason is not None},
            points=tuple(f"{when}_{step}" for step in steps for when in ("before", "after")),
        )


def _obstacle(kind: FaultKind, servers: Servers, store: Store, *, is_kafka: bool) -> str | None:
    """Why this fault cannot happen; None: it can."""
    urls = {Target.STORE_CONNECTION: servers.checker_url, Target.BROKER_CONNECTION: servers.broker_url}
    if kind.target in urls and address_of(urls[kind.target]) is None:
        return "no proxy can stand before a file, several servers, or TLS"
    match kind:
        case FaultKind.SHIFT_CLOCK if store.is_file:
            return "SQLite's clock is its machine's"
        case FaultKind.SHIFT_CLOCK if is_kafka:
            return "under libfaketime the waits of librdkafka end at once or never"
        case FaultKind.SHIFT_CLOCK:
            return no_wrong_clocks()
        case FaultKind.RESTART_STORE if servers.restart_store is None:
            return "no command was given (--restart-store)"
        case FaultKind.RESTART_BROKER if servers.restart_broker is None:
            return "no command was given (--restart-broker)"
        case FaultKind.FORGET | FaultKind.EVICT if not store.is_redis:
            return "only Redis can lose keys"
        case FaultKind.FILL_DISK if servers.full_disk is None:
            return "the store's disk cannot be filled from here"
        case _:
            return None
