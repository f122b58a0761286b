"""The contract on SQLite, which has one writer at a time."""

from idempotent.testing import Capability
from tests.checkers.contract.over_store import LeasedOver, TransactionalOver


class TestSqlChecker(LeasedOver):
    kind = "sqlite"


class TestTransactionalSqlChecker(TransactionalOver):
    kind = "sqlite"
    lacks = TransactionalOver.lacks | {Capability.PARALLEL_CLAIMS}

    def make_checker(self, *, lease_s, retention_s):
        # Not 5 seconds: several tests ask for a key whose transaction stays open.
        engine = self.store.engine(connect_args={"timeout": 0.5})
        return self.store.transactional(engine, retention_s=retention_s)
