"""The contract on MemoryChecker."""

import pytest

from idempotent.checkers import MemoryChecker
from idempotent.testing import CheckerContract
from tests.checkers.contract.over_store import LeasedOver


class TestMemoryChecker(LeasedOver):
    kind = "memory"


@pytest.mark.slow
class TestMemoryCheckerWithoutAge(CheckerContract):
    """A suite that does not override `age`: the contract waits."""

    def make_checker(self, *, lease_s, retention_s):
        return MemoryChecker(lease_s=lease_s, retention_s=retention_s)
