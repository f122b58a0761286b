"""A driver's own garbage collection, without a Spark session."""

from idempotent.adapters.spark import IdempotentRun
from tests.adapters.spark.ledger.contract.base import keys
from tests.adapters.spark.ledger.counting import claims_of
from tests.support.logs import logged


def test_a_driver_that_committed_collects_what_aborted_runs_left(sqlite_store, caplog):
    caplog.set_level("INFO")
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
    (told,) = logged(caplog, "run_claims_collected")
    assert (told.deleted, told.runs, told.aborted) == (3, 0, 0)
    # Not again within the hour.
    with IdempotentRun.begin(sqlite_store, consumer="orders", run_id="r3") as run:
        assert run.publish(lambda _: None)
    with IdempotentRun.begin(sqlite_store, consumer="orders", run_id="r4") as run:
        assert sum(claims_of(run.ledger, second).values()) == 2


def test_a_driver_with_nothing_to_collect_does_not_say_so(sqlite_store, caplog):
    caplog.set_level("INFO")
    with IdempotentRun.begin(sqlite_store, consumer="orders", run_id="r1") as run:
        assert run.publish(lambda _: None)
    assert logged(caplog, "run_committed")
    assert not logged(caplog, "run_claims_collected")
