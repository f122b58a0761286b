"""The contract on SQLite, which has one writer at a time."""

from idempotent.checkers import SqlChecker
from idempotent.testing import Capability
from tests.checkers.contract.over_store import LeasedOver, TransactionalOver


class TestSqlChecker(LeasedOver):
    kind = "sqlite"

    def make_checker(self, *, lease_s, retention_s):
        # On a busy disk one of eight threads may wait for the write lock for longer than the default of 5 seconds.
        engine = self.store.engine(connect_args={"timeout": 60})
        checker = SqlChecker(engine, table=self.store.table, lease_s=lease_s, retention_s=retention_s)
        self.store.opened.callback(checker.close)
        return checker


class TestTransactionalSqlChecker(TransactionalOver):
    kind = "sqlite"
    lacks = TransactionalOver.lacks | {Capability.PARALLEL_CLAIMS}

    def make_checker(self, *, lease_s, retention_s):
        # Not 5 seconds: several tests ask for a key whose transaction stays open.
        engine = self.store.engine(connect_args={"timeout": 0.5})
        return self.store.transactional(engine, retention_s=retention_s)
