"""The contract on Redis, which forgets expired keys by itself."""

from idempotent.testing import Capability
from tests.checkers.contract.over_store import LeasedOver


class TestRedisChecker(LeasedOver):
    kind = "redis"
    lacks = frozenset({Capability.GARBAGE_COLLECTION})
