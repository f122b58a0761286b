"""`idempotent gc`."""

import time

from idempotent.adapters.spark.ledger import StoreConfig, open_ledger
from idempotent.migrations import upgrade
from tests.adapters.spark.ledger.counting import claims_of
from tests.cli.support import BILLING, at, done


def test_gc_deletes_what_is_past_its_expiry_and_nothing_else(cli, store):
    for number in range(7):
        done(store, BILLING.key(f"old {number}"), retention_s=0.01)
    done(store, BILLING.key("new"))
    time.sleep(0.05)
    answer = cli("gc", *at(store), "--batch-size", "3", "--json")
    assert answer.code == 0
    # Redis deletes them automatically.
    assert answer.line == {"deleted": 0 if store.kind == "redis" else 7}
    assert [line["key"] for line in cli("keys", "list", *at(store), "--json").lines] == [
        "orders.paid:billing:new"
    ]
    said = "automatically" if store.kind == "redis" else "0 expired keys deleted"
    assert said in cli("gc", *at(store)).out


def test_a_batch_has_at_least_one_key(cli, sqlite_store):
    assert cli("gc", *at(sqlite_store), "--batch-size", "0").code == 2


def test_gc_collects_the_claims_of_sparks_runs_that_their_own_settings_no_longer_keep(cli, sqlite_store):
    url = sqlite_store.url
    upgrade(url, table=sqlite_store.table)
    with open_ledger(StoreConfig(url, table=sqlite_store.table)) as ledger:
        refs = [
            ledger.begin("orders", run_id, lease_s=60.0).ref for run_id in ("aborted", "open", "committed")
        ]
        for number, ref in enumerate(refs):
            ledger.claim(ref, [bytes([number, each]) * 10 for each in range(3)])
        ledger.abort(refs[0])
        ledger.prepare(refs[2])
        ledger.commit(refs[2])
        assert cli("gc", *at(sqlite_store), "--json").line == {"deleted": 0}
        answer = cli("gc", *at(sqlite_store), "--runs", "--json")
        assert answer.line == {"deleted": 0, "claims": 3, "runs": 0, "aborted": 0}
        assert [sum(claims_of(ledger, ref).values()) for ref in refs] == [0, 3, 3]
    assert (
        "0 runs and 0 claims of runs deleted, 0 runs without a driver aborted."
        in cli("gc", *at(sqlite_store), "--runs").out
    )
