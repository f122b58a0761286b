"""The contract over every ledger."""

from dataclasses import replace

from idempotent.stores.sql.dialects import Conflict
from tests.adapters.spark.ledger.contract import FullContract
from tests.adapters.spark.ledger.contract.garbage import GarbageContract


class TestMemory(FullContract, GarbageContract):
    kind = "memory"


class TestSqlite(FullContract, GarbageContract):
    kind = "sqlite"


class TestPostgres(FullContract, GarbageContract):
    kind = "postgres"


class TestMysql(FullContract, GarbageContract):
    kind = "mysql"


class TestMysqlWithoutReturning(FullContract):
    """MySQL cannot say which rows an INSERT made; MariaDB can, so it has to be told not to."""

    kind = "mysql"

    def begin(self, *arguments, **options):
        connections = self.ledger.store._connections
        if connections.dialect.conflict is not Conflict.SILENT:
            connections.dialect = replace(connections.dialect, conflict=Conflict.SILENT)
            self.ledger.store._tables = None
        return super().begin(*arguments, **options)


class TestRedis(FullContract):
    kind = "redis"
