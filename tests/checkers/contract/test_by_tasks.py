"""The contract as tasks of an event loop meet it: each claim, completion and release is awaited."""

from contextlib import contextmanager

import pytest

from idempotent.testing import Capability
from idempotent.testing.checker_contract.contract import StepsContract
from tests.support.awaited import AwaitedChecker
from tests.support.stores import open_store


class LeasedByTasks(StepsContract):
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
