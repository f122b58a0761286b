"""The targets of the outbox."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.bench.figures import Figure, Figures, faster, slower
from tests.bench.goals import Goal, Target
from tests.bench.outbox.names import (
    BATCH,
    PEER,
    SENDS,
    WAITING,
    idle_relay_to,
    read_of,
    relay_to,
    sender,
    with_outbox,
)

_NONE, *_SOME = SENDS
_TIMES: Final = {"PostgreSQL": (1.25, 1.5), "MariaDB": (1.35, 1.75)}
_RATES: Final = {
    "PostgreSQL": {"Kafka": 20_000, "RabbitMQ": 6_000},
    "MariaDB": {"Kafka": 12_000, "RabbitMQ": 4_500},
}
_IDLE_MS: Final = 15
_TIMES_THE_PEER: Final = 3
# A read of a table that does not fit into the server's memory, or has a deeper index, may take some longer.
_TIMES_OF_A_READ: Final = 2


def targets() -> Iterator[Target]:
    """Every row, in the order of the design."""
    for where in _TIMES:
        for messages, times in zip(_SOME, _TIMES[where], strict=True):
            yield _of_sending(where, messages, times)
    for where, rates in _RATES.items():
        for broker, rate in rates.items():
            yield from _of_relaying(where, broker, rate)
    for broker in _RATES["PostgreSQL"]:  # the only database that the peer has
        yield from _against_the_peer("PostgreSQL", broker)
    for where in _TIMES:
        yield _of_reading(where, *WAITING)


def _of_sending(where: str, messages: int, times: float) -> Target:
    return Target(
        f"handler that sends {messages} on {where}, against one that sends none",
        Goal.AT_MOST,
        times,
        "x the time",
        lambda f: slower(_find(f, where, sender(messages)), _find(f, where, sender(_NONE))),
    )


def _of_relaying(where: str, broker: str, rate: int) -> Iterator[Target]:
    def relayed(figures: Figures) -> float | None:
        found = _find(figures, where, relay_to(broker), BATCH)
        return found.rate if found else None

    def idle(figures: Figures) -> float | None:
        found = _find(figures, where, idle_relay_to(broker))
        return found.p50_us / 1000 if found else None

    yield Target(f"Relay from {where} to {broker}, batch {BATCH}", Goal.AT_LEAST, rate, "messages/s", relayed)
    yield Target(
        f"idle Relay from {where} to {broker}, median from commit to confirm",
        Goal.AT_MOST,
        _IDLE_MS,
        "ms",
        idle,
    )


def _against_the_peer(where: str, broker: str) -> Iterator[Target]:
    yield Target(
        f"Relay from {where} to {broker}, against {PEER}",
        Goal.AT_LEAST,
        _TIMES_THE_PEER,
        "x the rate",
        lambda f: faster(
            _find(f, where, relay_to(broker), BATCH), _find(f, where, relay_to(broker, PEER), BATCH)
        ),
    )
    yield Target(
        f"idle Relay from {where} to {broker}, median from commit to confirm, against {PEER}",
        Goal.AT_MOST,
        1,
        "x the time",
        lambda f: slower(
            _find(f, where, idle_relay_to(broker)), _find(f, where, idle_relay_to(broker, PEER))
        ),
    )


def _of_reading(where: str, few: int, many: int) -> Target:
    return Target(
        f"read of a relay on {where}, {many:,} messages waiting, against {few:,}",
        Goal.AT_MOST,
        _TIMES_OF_A_READ,
        "x the time",
        lambda f: slower(_find(f, where, read_of(many)), _find(f, where, read_of(few))),
    )


def _find(figures: Figures, where: str, who: str, batch: int = 1) -> Figure | None:
    return figures.find(with_outbox(where), who, batch=batch)
