"""A table's name may have capitals or be a reserved word: the ledger's statements quote it, as the migrations do."""

from __future__ import annotations

import pytest

from idempotent.adapters.spark.ledger import StoreConfig, open_ledger
from idempotent.migrations import downgrade, upgrade


@pytest.mark.parametrize("table", ["order", "Dedup_Tbl"])
def test_every_kind_of_statement_works(sql_store, table):
    upgrade(sql_store.url, table=table)
    hashes = [bytes([number]) * 20 for number in range(3)]
    with open_ledger(StoreConfig(sql_store.url, table=table)) as ledger:
        ref = ledger.begin("orders", "run", lease_s=60.0).ref
        assert [owner.token for owner in ledger.claim(ref, hashes) if owner] == [ref.token] * 3
        ledger.prepare(ref)
        ledger.commit(ref)
        assert ledger.collect().claims == 0
    downgrade(sql_store.url, table=table)
