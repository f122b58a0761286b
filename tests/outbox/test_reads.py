"""A relay's read takes as long with few messages as with many, also of a table of which the server knows nothing."""

import pytest

from tests.outbox.filling import fill

ROWS = 5_000


def plan(store, sql_store):
    """How the server would read all buckets."""
    queries = store.reads(dict.fromkeys(range(64), 8), " AND COALESCE(destination = '', FALSE)")
    statement = store.text(" UNION ALL ".join(queries))
    with sql_store.admin_engine.connect() as connection:
        return [" ".join(map(str, row)) for row in connection.exec_driver_sql(f"EXPLAIN {statement}")]


@pytest.mark.parametrize("sql_store", ["postgres"], indirect=True)
def test_postgresql_reads_by_the_index_of_buckets_without_statistics(outbox, tables, sql_store):
    fill(sql_store.admin_engine, tables.waiting, ROWS)
    steps = "\n".join(plan(outbox.store, sql_store))
    assert f"Index Scan using ix_{tables.waiting.name}_bucket" in steps
    assert "Bitmap" not in steps
    assert "Seq Scan" not in steps
    assert "Sort" not in steps


@pytest.mark.parametrize("sql_store", ["mysql"], indirect=True)
def test_mariadb_reads_without_temporary_tables(outbox, tables, sql_store):
    fill(sql_store.admin_engine, tables.waiting, ROWS)
    steps = plan(outbox.store, sql_store)
    assert not [step for step in steps if "DERIVED" in step or "temporary" in step or "filesort" in step]
    assert sum(f"ix_{tables.waiting.name}_bucket" in step for step in steps) == 64


def test_messages_of_many_buckets_are_read_in_the_order_of_their_rows(outbox, send):
    send(*range(200))
    limits = {bucket: 100 if bucket % 2 else 50 for bucket in range(64)}
    found = outbox.store.read(limits)
    assert [int(message.body) for message in found] == list(range(200))
    assert outbox.store.read(limits, "other") == []
    assert len(outbox.store.read({found[0].bucket: 1}, "")) == 1
