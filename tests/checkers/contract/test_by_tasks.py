"""The contract as tasks of an event loop meet it: each claim, completion and release is awaited."""

from contextlib import contextmanager

import pytest

from idempotent.testing import Capability
from idempotent.testing.checker_contract.backoff import BackoffContract
from idempotent.testing.checker_contract.claims import ClaimsContract
from idempotent.testing.checker_contract.content import ContentContract
from idempotent.testing.checker_contract.failures import FailuresContract
from idempotent.testing.checker_contract.gc import GcContract
from idempotent.testing.checker_contract.groups import GroupsContract
from idempotent.testing.checker_contract.keys import KeysContract
from idempotent.testing.checker_contract.leases import LeasesContract
from idempotent.testing.checker_contract.races import RacesContract
from idempotent.testing.checker_contract.transactions import TransactionsContract
from tests.support.awaited import AwaitedChecker
from tests.support.stores import open_store


class LeasedByTasks(
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
    """All but the contract of tasks, which brings its own."""

    @pytest.fixture(autouse=True)
    def _store(self, request):
        with contextmanager(open_store)(self.kind, request, least=True, reuse=True) as self.store:
            yield

    def make_checker(self, *, lease_s, retention_s):
        return AwaitedChecker(self.store.leased(lease_s=lease_s, retention_s=retention_s))

    def age(self, checker, seconds):
        del checker
        self.store.age(seconds)


class TransactionalByTasks(LeasedByTasks):
    lacks = frozenset({Capability.RECORDED_CLAIMS, Capability.LEASES})

    def make_checker(self, *, lease_s, retention_s):
        options = {"retention_s": retention_s, "lock_timeout_s": 0.2}
        return AwaitedChecker(self.store.transactional(self.store.async_engine(), **options))


class TestRedisChecker(LeasedByTasks):
    kind = "redis"
    lacks = frozenset({Capability.GARBAGE_COLLECTION})


class TestSqlCheckerOnMariaDb(LeasedByTasks):
    kind = "mysql"


class TestSqlCheckerOnPostgres(LeasedByTasks):
    kind = "postgres"


class TestTransactionalSqlCheckerOnMariaDb(TransactionalByTasks):
    kind = "mysql"


class TestTransactionalSqlCheckerOnPostgres(TransactionalByTasks):
    kind = "postgres"
