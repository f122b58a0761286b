"""A driver's own garbage collection, without a Spark session."""

from idempotent.adapters.spark import IdempotentRun
from tests.adapters.spark.ledger.contract.base import keys
from tests.adapters.spark.ledger.counting import claims_of


def test_a_driver_that_committed_collects_what_aborted_runs_left(sqlite_store):
    with IdempotentRun.begin(sqlite_store, consumer="orders", run_id="aborted") as run:
        aborted = run.handle.ref
        run.ledger.claim(aborted, keys(3))
        run.abort()
    with IdempotentRun.begin(sqlite_store, consumer="orders", run_id="r1") as run:
        assert sum(claims_of(run.ledger, aborted).values()) == 3
        assert run.publish(lambda _: None)
    with IdempotentRun.begin(sqlite_store, consumer="orders", run_id="r2") as run:
        assert sum(claims_of(run.ledger, aborted).values()) == 0
        run.ledger.claim(run.handle.ref, keys(2))
        run.abort()
        second = run.handle.ref
    # Not again within the hour.
    with IdempotentRun.begin(sqlite_store, consumer="orders", run_id="r3") as run:
        assert run.publish(lambda _: None)
    with IdempotentRun.begin(sqlite_store, consumer="orders", run_id="r4") as run:
        assert sum(claims_of(run.ledger, second).values()) == 2
