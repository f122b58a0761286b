"""`idempotent gc`."""

import time

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
