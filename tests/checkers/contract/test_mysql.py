"""The contract on MySQL or MariaDB, whichever the tests have, and on the way that MySQL takes."""

from dataclasses import replace

from idempotent.stores.sql.dialects import Conflict
from tests.checkers.contract.over_store import AsyncTransactionalOver, LeasedOver, TransactionalOver


class TestSqlChecker(LeasedOver):
    kind = "mysql"


class TestTransactionalSqlChecker(TransactionalOver):
    kind = "mysql"


class TestAsyncTransactionalSqlChecker(AsyncTransactionalOver):
    kind = "mysql"


def _silenced(checker):
    """MySQL cannot say which rows an INSERT made; MariaDB can, so it has to be told not to."""
    connections = checker.store.connections
    connections.dialect = replace(connections.dialect, conflict=Conflict.SILENT)
    return checker


class TestSqlCheckerWithoutReturning(LeasedOver):
    kind = "mysql"

    def make_checker(self, *, lease_s, retention_s):
        return _silenced(self.store.leased(lease_s=lease_s, retention_s=retention_s))


class TestTransactionalSqlCheckerWithoutReturning(TransactionalOver):
    kind = "mysql"

    def make_checker(self, *, lease_s, retention_s):
        # MySQL's wait for a lock is its session's, 50 seconds unless told otherwise.
        wait = {"init_command": "SET SESSION innodb_lock_wait_timeout = 1"}
        engine = self.store.consumer_engine(connect_args=wait)
        return _silenced(self.store.transactional(engine, retention_s=retention_s))
