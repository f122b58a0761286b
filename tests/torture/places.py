"""The queues or topics of a run. With RabbitMQ most messages go through a queue with a delivery limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from examples.demo.stage.places import Place, RabbitMqPlace, place_at
from tests.torture.traffic import subjects_of

MOST_BATCH: Final = 200
_DELIVERIES: Final = 10
"""More than the kills and lost connections that a message meets, fewer than a worker's checks of a key that is busy."""


def places_of(broker_url: str, name: str, *, outbox: bool = False) -> Sequence[Place]:
    """One for each subject. Raises ConfigurationError: the URL names no known broker."""
    places = [place_at(broker_url, subject, MOST_BATCH) for subject in subjects_of(name, outbox=outbox)]
    limited = places[0]
    if isinstance(limited, RabbitMqPlace):
        limited.queues = _limited(limited.subject)
    return places


def _limited(queue: str) -> Mapping[str, Mapping[str, Any]]:
    """A quorum queue with a delivery limit, behind which the broker makes a dead letter.

    The dead letter is strange there: only crashes and lost connections may use up the limit.
    """
    from idempotent.adapters.rabbitmq.topology import DEAD_SUFFIX

    return {
        queue: {
            "x-queue-type": "quorum",
            "x-delivery-limit": _DELIVERIES,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": queue + DEAD_SUFFIX,
        }
    }
