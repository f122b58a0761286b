"""The contract on MemoryChecker."""

from tests.contract.over_store import LeasedOver


class TestMemoryChecker(LeasedOver):
    kind = "memory"
