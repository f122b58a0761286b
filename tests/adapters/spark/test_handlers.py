"""Modes effect and replay: a handler's work is not repeated by another evaluation, task or run."""

import threading
import time
import traceback

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from idempotent.adapters.spark import (
    IdempotentRun,
    idempotent_batches,
    idempotent_foreach,
    idempotent_partitions,
    key_hash,
)
from idempotent.adapters.spark.ledger import RunState
from idempotent.adapters.spark.ledger.claims import HASH_BYTES
from idempotent.adapters.spark.ledger.handler_claims import HandlerClaims
from idempotent.adapters.spark.tasks.handlers import Handlers
from idempotent.errors import ConfigurationError, RunConflictError, RunFencedError, RunInputChangedError
from tests.adapters.spark.support.faults import is_first_attempt
from tests.adapters.spark.support.frames import ROWS
from tests.adapters.spark.support.slow import slow_at_first
from tests.support.logs import logged

OUT = StructType([StructField("k", StringType()), StructField("text", StringType())])


@pytest.fixture
def begin(store):
    begun = []

    def run(run_id="r1", **options):
        options = {"lease_s": 15.0, "chunk": 100} | options
        begun.append(IdempotentRun.begin(store, consumer="orders", run_id=run_id, **options))
        return begun[-1]

    yield run
    for each in begun:
        each.close()


def replay(frame, run, handler):
    mapped = idempotent_batches(run, key="k", handler=handler, mode="replay", schema=OUT)
    return frame.mapInArrow(mapped, OUT)


def once(effects):
    return len(effects.times) == ROWS and set(effects.times.values()) == {1}


@pytest.mark.slow
def test_an_effect_happens_once_over_actions_runs_and_copies(frame, begin, effects):
    def handle(row):
        effects.add(row["k"])

    run = begin()
    for _ in range(2):
        frame.union(frame).foreachPartition(idempotent_foreach(run, key="k", handler=handle))
        assert once(effects)
    with run.publishing():
        pass
    frame.foreachPartition(idempotent_foreach(begin("r2"), key="k", handler=handle))
    assert once(effects)


@pytest.mark.slow
def test_an_rdd_has_effects_as_a_frame_has(frame, begin, effects):
    def handle(row):
        effects.add(row["k"])

    frame.rdd.foreachPartition(idempotent_foreach(begin(), key=lambda row: row["k"], handler=handle))
    assert once(effects)


@pytest.mark.slow
def test_a_replayed_result_is_the_first_one_in_every_evaluation(frame, begin, effects):
    def handle(row):
        effects.add(row["k"])
        return {"k": row["k"], "text": f"call {len(effects.words)} of {row['k']}"}

    run = begin()
    mapped = replay(frame.union(frame), run, handle)
    first = {(row["k"], row["text"]) for row in mapped.collect()}
    assert once(effects)
    assert len(first) == ROWS
    assert mapped.count() == 2 * ROWS  # a result for each row: this mode does not drop duplicates
    assert {(row["k"], row["text"]) for row in replay(frame, run, handle).collect()} == first
    with run.publishing():
        pass
    assert {(row["k"], row["text"]) for row in replay(frame, begin("r2"), handle).collect()} == first
    assert once(effects)


HELD, FREE = (bytes([number]) * HASH_BYTES for number in (1, 2))


def test_a_task_that_waits_for_another_attempt_says_so_once_and_names_its_patience(
    begin, in_this_process, caplog
):
    run, other = begin(wait_s=0.3), begin("r2")
    HandlerClaims(run.ledger, other.handle.ref, 15.0).acquire([HELD])
    with pytest.raises(
        RunConflictError, match=r"1 keys of .*'r1'.* held by other attempts for more than 0\.3 s"
    ):
        Handlers(run.handle, lambda _: [None]).run([HELD], [1])
    (told,) = logged(caplog, "run_waits")
    assert told.wait_s == pytest.approx(0.3, abs=0.1)
    assert "of run 'r2', which is OPEN (driver " in told.reason
    with pytest.raises(RunConflictError, match="Type: idempotent runs show r1 --consumer orders"):
        Handlers(run.handle, lambda _: [None]).run([HELD], [1])
    assert len(logged(caplog, "run_waits")) == 1, "a task that is tried again waits once more"


def test_a_task_that_waits_for_another_task_of_its_run_is_no_warning_and_does_not_name_its_own_run(
    begin, in_this_process, caplog
):
    run, other = begin(wait_s=0.3), begin("r2")
    HandlerClaims(run.ledger, run.handle.ref, 15.0).acquire([HELD])
    with pytest.raises(
        RunConflictError, match="They are of other tasks of this run, or tries that died; a lease"
    ):
        Handlers(run.handle, lambda _: [None]).run([HELD], [1])
    assert not logged(caplog, "run_waits")
    # Keys for which no try has waited yet.
    theirs, ours = FREE, bytes([3]) * HASH_BYTES
    HandlerClaims(run.ledger, other.handle.ref, 15.0).acquire([theirs])
    HandlerClaims(run.ledger, run.handle.ref, 15.0).acquire([ours])
    with pytest.raises(RunConflictError):
        Handlers(run.handle, lambda _: [None, None]).run([theirs, ours], [1, 2])
    (told,) = logged(caplog, "run_waits")
    assert "2 keys that other attempts hold, of other tasks of this run" in told.reason
    assert ", run 'r2', which is OPEN" in told.reason


def test_what_a_handler_takes_is_no_wait_for_another_attempt(begin, in_this_process):
    run = begin(wait_s=0.5)
    other = HandlerClaims(run.ledger, run.handle.ref, 15.0)
    other.acquire([HELD])

    def handle(_):
        time.sleep(0.6)
        other.finish([(HELD, b"theirs")])
        return [b"mine"]

    assert Handlers(run.handle, handle).run([HELD, FREE], [1, 2]) == {HELD: b"theirs", FREE: b"mine"}


def test_handlers_are_called_in_the_order_of_the_rows(frame, begin, effects):
    def handle(row):
        effects.add(row["k"])
        return {"k": row["k"], "text": "done"}

    few = frame.where("v < 20").coalesce(1)
    keys = [f"k{number}" for number in range(20)]
    run = begin(chunk=7)
    assert [row["k"] for row in replay(few, run, handle).collect()] == keys
    assert effects.words == keys
    assert run.counts == {"new": 20, "duplicate": 0, "conflict": 0}
    few.foreachPartition(idempotent_foreach(run, key="k", handler=handle))
    assert run.counts == {"new": 20, "duplicate": 20, "conflict": 0}


@pytest.mark.slow
def test_a_replay_survives_the_failure_of_its_task(frame, begin, effects):
    def handle(row):
        if row["v"] == 150 and is_first_attempt():
            raise ValueError("not yet")
        effects.add(row["k"])
        return {"k": row["k"], "text": "done"}

    assert replay(frame, begin(), handle).count() == ROWS
    assert once(effects)


@pytest.mark.slow
def test_a_handler_that_always_raises_fails_the_job_and_leaves_its_key_free(frame, begin, effects):
    def handle(row):
        if row["v"] == 150:
            raise ValueError("the price is missing")
        effects.add(row["k"])

    # The job cannot wait for the end of this lease.
    run = begin(lease_s=600, wait_s=5)
    with pytest.raises(Exception, match="ValueError: the price is missing"):
        frame.foreachPartition(idempotent_foreach(run, key="k", handler=handle))
    frame.foreachPartition(idempotent_foreach(run, key="k", handler=lambda row: effects.add(row["k"])))
    assert once(effects)


@pytest.mark.slow
def test_what_a_handler_raises_can_be_read_on_the_driver(frame, begin):
    few = frame.where("v < 3").coalesce(1)
    with pytest.raises(
        Exception, match=r"ConfigurationError: a result that is replayed must be JSON: Object of type"
    ):
        replay(few, begin(), lambda row: {"k": row["k"], "text": {1, 2}}).collect()


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"k": "k1", "text": {1, 2}}, "must be JSON"),
        ({"k": "k1", "text": float("nan")}, "must be JSON"),
        ({"k": "k1", "text": "x" * 70_000}, "65536 is the most"),
        (
            {"k": "k1", "text": 777},
            "does not fit the schema: it has k str, text int, not k string, text string",
        ),
        (
            {"k": "k1", "txet": "777"},
            "does not fit the schema: it has 'k', 'txet'; .*names are among k, text",
        ),
        (None, "does not fit the schema: it has NoneType"),
    ],
    ids=["a set", "not a number", "too long", "another type", "another name", "nothing"],
)
def test_a_result_that_fits_no_row_is_refused_before_it_counts_as_done(
    begin, in_this_process, result, message
):
    run = begin()
    batch = pa.RecordBatch.from_pylist([{"k": "k1", "v": 1}])

    def replayed(handler):
        mapped = idempotent_batches(run, key="k", handler=handler, mode="replay", schema=OUT)
        return [row for each in mapped([batch]) for row in each.to_pylist()]

    with pytest.raises(ConfigurationError, match=message) as refused:
        replayed(lambda row: result)
    assert "777" not in "".join(traceback.format_exception(refused.value))
    assert replayed(lambda row: {"k": row["k"]}) == [{"k": "k1", "text": None}]


@pytest.mark.slow
def test_a_key_that_another_attempt_holds_is_waited_for(frame, begin, effects):
    """Until that attempt has failed, and then it is handled here, or has done it, and then it is not."""
    run = begin()
    other = HandlerClaims(run.ledger, run.handle.ref, 600)
    fails, finishes = hash_of(run, "k0"), hash_of(run, "k1")
    other.acquire([fails, finishes])

    def end_when_the_job_has_handled_the_rest():
        while len(effects.times) < 48:
            time.sleep(0.05)
        other.finish([(finishes, None)])
        other.give_up([fails])

    holder = threading.Thread(target=end_when_the_job_has_handled_the_rest, daemon=True)
    holder.start()
    one_chunk = frame.where("v < 50").coalesce(1)
    one_chunk.foreachPartition(idempotent_foreach(run, key="k", handler=lambda row: effects.add(row["k"])))
    assert effects.times["k0"] == 1
    assert "k1" not in effects.times
    assert len(effects.times) == 49


def test_waiting_for_a_key_ends_with_an_error_that_says_so(begin, in_this_process):
    run = begin(wait_s=0.2)
    key = hash_of(run, "k0")
    HandlerClaims(run.ledger, run.handle.ref, 600).acquire([key])
    with pytest.raises(RunConflictError, match=r"1 keys of run 'r1'.*held by other attempts"):
        idempotent_foreach(run, key="k", handler=print)([{"k": "k0"}])


@pytest.mark.slow
def test_a_lease_is_renewed_while_a_handler_is_at_work(spark, redis_store, effects):
    """Two tasks want the same key, and its handler takes longer than a lease. The ledger's contract has each store."""
    both = spark.sparkContext.parallelize([{"k": "k0"}] * 2, 2)
    with IdempotentRun.begin(redis_store, consumer="orders", run_id="r1", lease_s=4) as run:
        # Without a renewal the other task takes the key over within a second of the lease's end.
        both.foreachPartition(idempotent_foreach(run, key="k", handler=slow_at_first(effects, 6)))
    assert effects.words == ["k0"]


def test_a_key_of_mode_dedup_is_refused_in_mode_effect(begin, in_this_process):
    run = begin()
    assert list(idempotent_partitions(run, key="k")([{"k": "k0"}])) == [{"k": "k0"}]
    with pytest.raises(ConfigurationError, match="own consumer"):
        idempotent_foreach(run, key="k", handler=print)([{"k": "k0"}])


def test_a_key_of_mode_effect_is_refused_in_mode_dedup(begin, in_this_process):
    """Also of an aborted run: its effect has happened, and as a new key it would be published again."""
    run = begin()
    idempotent_foreach(run, key="k", handler=lambda row: None)([{"k": "k0"}])
    for other in (run, begin("r2")):
        with pytest.raises(
            ConfigurationError, match=r"mode replay or effect and now in mode dedup.*own consumer"
        ):
            list(idempotent_partitions(other, key="k")([{"k": "k1"}, {"k": "k0"}]))
        run.abort()


async def _async(rows):
    """Never awaited."""


def _generator(rows):
    yield


# What of a call has not been done when it returns.
NOT_DONE = {
    "an async def": _async,
    "a generator": _generator,
    "map": lambda rows: map(print, rows),
    "an expression": lambda rows: (each for each in rows),
}


@pytest.mark.parametrize("handler", NOT_DONE.values(), ids=list(NOT_DONE))
@pytest.mark.parametrize("options", [{}, {"batch_size": 5}], ids=["a row", "a batch"])
def test_a_handler_that_does_its_work_later_is_refused_and_its_key_is_free(
    sqlite_store, in_this_process, handler, options
):
    with IdempotentRun.begin(sqlite_store, consumer="orders", run_id="r1", wait_s=0) as run:
        for transactional in (False, True):
            work = idempotent_foreach(
                run,
                key="k",
                handler=lambda rows, *_: handler([rows]),
                transactional=transactional,
                **options,
            )
            with pytest.raises(ConfigurationError, match="the handler returned a"):
                work([{"k": "k0"}])
        with pytest.raises(ConfigurationError, match="the handler returned a"):
            run.publish(lambda publication: handler([publication]))
        assert run.state is RunState.PREPARED


@pytest.mark.parametrize("mode", ["effect", "replay"])
def test_effects_of_a_prepared_run_are_gone_over_again(begin, in_this_process, effects, mode):
    """The loop of the docs, begun again after a crash in `publish`: nothing is left to do, and nothing stops it."""

    def handle(row):
        effects.add(row["k"])
        return {"k": row["k"]}

    def work(run, key):
        if mode == "effect":
            idempotent_foreach(run, key="k", handler=handle)([{"k": key}])
        else:
            mapped = idempotent_batches(run, key="k", handler=handle, mode="replay", schema=OUT)
            assert len(list(mapped([pa.RecordBatch.from_pylist([{"k": key}])]))) == 1

    def dies(publication):
        raise SystemExit

    run = begin()
    work(run, "k0")
    with pytest.raises(SystemExit):
        run.publish(dies)
    for _ in range(2):
        run = begin(takeover=True)
        work(run, "k0")
        with pytest.raises(RunInputChangedError, match="meets a key that it did not claim"):
            work(run, "k1")
    assert run.publish(lambda publication: None)
    assert effects.words == ["k0"]


def test_rows_of_a_prepared_run_that_staged_none_are_refused_with_a_way_out(begin, in_this_process):
    run = begin(takeover=True)
    assert len(list(idempotent_partitions(run, key="k")([{"k": "k0"}]))) == 1
    with pytest.raises(RunInputChangedError), run.publishing(rows=1):
        raise RunInputChangedError
    again = begin(takeover=True)
    with pytest.raises(
        RunFencedError, match=r"If it staged nothing.* runs abort r1 --consumer orders --unpublished"
    ):
        list(idempotent_partitions(again, key="k")([{"k": "k0"}]))


def test_arguments_that_do_not_go_together_are_refused_on_the_driver(begin):
    run = begin()
    for options, message in [
        ({"mode": "effect"}, "idempotent_foreach"),
        ({"mode": "replay"}, "needs a handler"),
        ({"handler": print}, 'go with mode="replay"'),
        ({"chunk": 0}, "chunk must be a whole number, at least 1"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            idempotent_batches(run, key="k", **options)
    with pytest.raises(ConfigurationError, match="at least one column"):
        idempotent_foreach(run, key=[], handler=print)


def hash_of(run, key):
    return key_hash(run.consumer, [key])
