"""Tables of others that stand in the way of an upgrade."""

import pytest
from sqlalchemy import BigInteger, Column, DateTime, Integer, MetaData, String, Table, func, insert

from idempotent.errors import SchemaError
from idempotent.migrations import DriftKind, check, upgrade
from tests.migrations.support import names, rows


class TestOtherTablesInTheWay:
    @pytest.fixture
    def qmq(self, engine, table):
        qmq = Table(
            table,
            MetaData(),
            Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
            Column("k", String(100), nullable=False, unique=True),
            Column("update_at", DateTime, server_default=func.now()),
        )
        qmq.create(engine)
        with engine.begin() as connection:
            connection.execute(insert(qmq), {"k": "orders.paid%billing%1"})
        return qmq

    def test_qmqs_own_table_is_recognised_and_kept(self, url, engine, table, qmq):
        with pytest.raises(SchemaError) as error:
            upgrade(url, table=table)
        for words in (table, "QMQ's own", "Nothing was changed", "table=", "rename"):
            assert words in str(error.value)
        assert names(engine, table) == [table]
        assert rows(engine, table) == 1

    def test_check_calls_it_by_its_name(self, url, table, qmq):
        qmqs, *missing = check(url, table=table)
        assert qmqs.kind is DriftKind.FOREIGN_TABLE
        assert [drift.kind for drift in missing] == [DriftKind.MISSING_TABLE] * 2
        assert "QMQ's own" in str(qmqs)

    @pytest.mark.slow
    def test_it_can_stay_next_to_ours(self, url, engine, table, qmq):
        upgrade(url, table=f"{table}_ours")
        assert check(url, table=f"{table}_ours") == []
        assert rows(engine, table) == 1

    @pytest.mark.parametrize("suffix", ["", "_failures", "_offsets", "_runs", "_run_claims", "_outbox_held"])
    def test_any_other_table_is_refused_with_what_differs(self, url, engine, table, suffix):
        Table(table + suffix, MetaData(), Column("name", String(9), primary_key=True)).create(engine)
        with pytest.raises(SchemaError) as error:
            upgrade(url, table=table)
        for words in (": missing column", f"{table}{suffix}.name: extra column", "Nothing was changed"):
            assert words in str(error.value)
        assert names(engine, table) == [table + suffix]
