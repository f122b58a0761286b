"""The contract on PostgreSQL."""

from tests.contract.over_store import LeasedOver, TransactionalOver


class TestSqlChecker(LeasedOver):
    kind = "postgres"


class TestTransactionalSqlChecker(TransactionalOver):
    kind = "postgres"
