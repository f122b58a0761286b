"""The lease of a run is renewed for as long as somebody has the run, and no longer."""

import gc
import threading
import time

import pytest

from idempotent.adapters.spark import IdempotentRun
from tests.worker.running import until

LEASE_S = 1.5
# Of a version that stages more than this one knows.
LATER = b'[{"folder": "out", "path": "out/1", "files": [], "rows": 0, "format": "parquet", "schema": "{}", "new": 1}]'


def begin(store, **options):
    return IdempotentRun.begin(store, consumer="orders", run_id="r1", lease_s=LEASE_S, **options)


def renewals():
    return [each for each in threading.enumerate() if each.name == "idempotent-run-lease"]


def test_a_run_in_use_keeps_its_lease(sqlite_store):
    with begin(sqlite_store) as run:
        time.sleep(1.2 * LEASE_S)
        row = run.ledger.store.newest("orders", "r1")
        assert (row.lapsed, row.ref.epoch) == (False, 1)
    assert not renewals()


def test_a_run_that_cannot_be_made_leaves_no_thread_that_renews_its_lease(sqlite_store):
    with begin(sqlite_store) as run:
        run.ledger.prepare(run.handle.ref, manifest=LATER)
    with pytest.raises(TypeError, match="new"):
        begin(sqlite_store)
    assert not renewals()


def test_a_run_that_was_dropped_without_close_is_renewed_no_more(sqlite_store):
    begin(sqlite_store)
    gc.collect()
    until(lambda: not renewals())
    with begin(sqlite_store, wait_s=4 * LEASE_S) as run:
        assert run.handle.ref.epoch == 2
