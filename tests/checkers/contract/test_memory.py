"""The contract on MemoryChecker."""

from tests.checkers.contract.over_store import LeasedOver


class TestMemoryChecker(LeasedOver):
    kind = "memory"
