"""CheckerContract: every promise of a checker, as tests that you subclass."""

from __future__ import annotations

from idempotent.testing.checker_contract.claims import ClaimsContract, ContentContract, KeysContract
from idempotent.testing.checker_contract.failures import BackoffContract, FailuresContract, LeasesContract
from idempotent.testing.checker_contract.gc import GcContract
from idempotent.testing.checker_contract.groups import GroupsContract, TasksContract, TransactionsContract
from idempotent.testing.checker_contract.races import RacesContract
from idempotent.testing.checker_contract.rule import CellsContract


class StepsContract(
    ClaimsContract,
    ContentContract,
    FailuresContract,
    BackoffContract,
    LeasesContract,
    GroupsContract,
    KeysContract,
    GcContract,
    RacesContract,
    TransactionsContract,
):
    """The tests of claims, completions and releases; threads and tasks both run them."""


class CheckerContract(StepsContract, CellsContract, TasksContract):
    """The tests that prove a checker. pytest collects them from your subclass.

    ::

        class TestMyChecker(CheckerContract):
            def make_checker(self, *, lease_s, retention_s):
                return MyChecker(lease_s=lease_s, retention_s=retention_s)

    Name what your checker cannot do in `lacks`; tests of that are then not collected.

    Tests that need a lapsed claim or an expired key wait for it: set `lease_s` to more than 0.2 seconds if the store's
    clock is coarse. Better, give your suite a method that changes the stored times; then no test waits::

            def age(self, checker, seconds):
                execute("UPDATE keys SET lease_until = lease_until - :s, expires_at = expires_at - :s", s=seconds)
    """
