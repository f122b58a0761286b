"""The contract on MySQL or MariaDB, whichever the tests have, and on the way that MySQL takes."""

from dataclasses import replace

from idempotent.sql.dialects import Conflict
from tests.contract.over_store import LeasedOver, TransactionalOver


class TestSqlChecker(LeasedOver):
    kind = "mysql"


class TestTransactionalSqlChecker(TransactionalOver):
    kind = "mysql"


class _Silent(LeasedOver):
    """MySQL cannot say which rows an INSERT made; MariaDB can, so it has to be told not to."""

    kind = "mysql"

    def make_checker(self, *, lease_s, retention_s):
        checker = super().make_checker(lease_s=lease_s, retention_s=retention_s)
        connections = checker.store.connections
        connections.dialect = replace(connections.dialect, conflict=Conflict.SILENT)
        return checker


class TestSqlCheckerWithoutReturning(_Silent):
    pass


class TestTransactionalSqlCheckerWithoutReturning(_Silent, TransactionalOver):
    pass
