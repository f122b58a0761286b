"""End to end: messages that wait in a broker, consumed to the last one, with and without a checker."""

from tests.bench.brokers.places import Place, missing, open_place
from tests.bench.brokers.rounds import BARE, BROKERS, BY_HAND, REDIS, SECOND_HALF, TRANSACTIONAL, measure

__all__ = [
    "BARE",
    "BROKERS",
    "BY_HAND",
    "REDIS",
    "SECOND_HALF",
    "TRANSACTIONAL",
    "Place",
    "measure",
    "missing",
    "open_place",
]
