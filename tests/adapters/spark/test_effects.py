"""Effects in batches."""

import os

import pytest

from idempotent.adapters.spark import IdempotentRun, idempotent_batches, idempotent_foreach
from idempotent.adapters.spark.ledger import ClaimState
from idempotent.errors import ConfigurationError
from tests.adapters.spark.ledger.counting import claims_of
from tests.adapters.spark.support.faults import dies, is_first_attempt
from tests.adapters.spark.support.frames import ROWS
from tests.adapters.spark.support.workers import exit_code_of
from tests.adapters.spark.test_handlers import OUT, hash_of

FEW = [{"k": f"k{number}", "v": number} for number in range(10)]
OTHER = b"a" * 16


@pytest.fixture
def begin(in_this_process):
    begun = []

    def run(store, run_id="r1", **options):
        begun.append(
            IdempotentRun.begin(store, consumer="orders", run_id=run_id, **{"lease_s": 600.0, **options})
        )
        return begun[-1]

    yield run
    for each in begun:
        each.close()


def keys(rows):
    return [row["k"] for row in rows]


def in_batches(run, handler, batch_size=4, **options):
    return idempotent_foreach(run, key="k", handler=handler, batch_size=batch_size, **options)


def test_a_handler_gets_batches_of_different_keys_in_the_order_of_the_rows(redis_store, begin):
    seen = []
    run = begin(redis_store)
    in_batches(run, lambda rows: seen.append(keys(rows)))([*FEW[:3], *FEW])
    assert seen == [keys(FEW[0:4]), keys(FEW[4:8]), keys(FEW[8:])]
    in_batches(run, seen.append)(FEW)
    assert len(seen) == 3


def test_a_batch_is_recorded_as_a_whole_or_not_at_all(redis_store, begin):
    run, seen = begin(redis_store, wait_s=0.5), []

    def handle(rows):
        seen.append(keys(rows))
        if "k5" in keys(rows) and len(seen) < 3:
            raise ValueError("not yet")

    with pytest.raises(ValueError, match="not yet"):
        in_batches(run, handle)(FEW)
    counted = claims_of(run.ledger, run.handle.ref)
    assert (counted[ClaimState.DONE], counted[ClaimState.PENDING]) == (4, 0)
    in_batches(run, handle)(FEW)
    assert seen == [keys(FEW[0:4]), keys(FEW[4:8]), keys(FEW[4:8]), keys(FEW[8:])]


def test_the_rest_of_a_batch_does_not_wait_for_a_key_that_another_attempt_holds(redis_store, begin):
    run, seen = begin(redis_store), []
    run.ledger.acquire(run.handle.ref, OTHER, [hash_of(run, "k1")], lease_s=600)

    def handle(rows):
        seen.append(keys(rows))
        run.ledger.give_up(OTHER, [hash_of(run, "k1")])

    in_batches(run, handle, 3)(FEW[:4])
    assert seen == [["k0", "k2", "k3"], ["k1"]]


def test_a_process_that_dies_in_a_batch_leaves_that_batch_to_the_next_driver(redis_store, begin, effects):
    run = begin(redis_store)

    def handle(rows):
        for row in rows:
            effects.add(row["k"])
            if row["k"] == "k5":
                os._exit(7)

    assert exit_code_of(in_batches(run, handle), FEW) == 7
    assert effects.words == keys(FEW[:6])
    later = begin(redis_store, takeover=True)
    in_batches(later, lambda rows: [effects.add(each) for each in keys(rows)])(FEW)
    assert effects.words == keys(FEW[:6]) + keys(FEW[4:])


def test_a_replay_in_batches_has_a_result_for_each_row(redis_store, begin):
    import pyarrow as pa

    run, seen = begin(redis_store), []

    def handle(rows):
        seen.append(len(rows))
        return [{"k": row["k"], "text": f"call {len(seen)}"} for row in rows]

    batch = pa.RecordBatch.from_pylist([*FEW, FEW[0]])
    mapped = idempotent_batches(run, key="k", handler=handle, mode="replay", schema=OUT, batch_size=4)
    for _ in range(2):
        (out,) = mapped([batch])
        assert [row["text"][-1] for row in out.to_pylist()] == list("11112222331")
        assert seen == [4, 4, 2]
    short = idempotent_batches(
        begin(redis_store, "r2"),
        key="k",
        handler=lambda rows: rows[:1],
        mode="replay",
        schema=OUT,
        batch_size=4,
    )
    with pytest.raises(ConfigurationError, match=r"a result for each of its 2 rows"):
        list(short([pa.RecordBatch.from_pylist([{"k": "a"}, {"k": "b"}])]))


@pytest.mark.slow
def test_a_worker_that_dies_in_a_batch_repeats_that_batch_alone(frame, redis_store, effects, begin):
    def handle(rows):
        for row in rows:
            effects.add(row["k"])
            if row["v"] == 150 and is_first_attempt():
                dies()

    run = begin(redis_store, lease_s=5.0)
    frame.foreachPartition(in_batches(run, handle, 20, chunk=100))
    assert len(effects.times) == ROWS
    assert {each for each, times in effects.times.items() if times > 1} == {f"k{v}" for v in range(140, 151)}
    assert set(effects.times.values()) == {1, 2}


def test_rows_of_batches_are_counted(frame, redis_store, effects, begin):
    run, few = begin(redis_store), frame.where("v < 30").coalesce(1)
    for counted in ({"new": 30, "duplicate": 30}, {"new": 30, "duplicate": 90}):
        few.union(few).coalesce(1).foreachPartition(
            in_batches(run, lambda rows: [effects.add(row["k"]) for row in rows], 7, chunk=20)
        )
        assert run.counts == {**counted, "conflict": 0}
    assert effects.words == [f"k{number}" for number in range(30)]


def test_a_size_that_is_no_number_of_rows_is_refused_on_the_driver(redis_store, begin):
    run = begin(redis_store)
    for size in (0, True, "4"):
        with pytest.raises(ConfigurationError, match="batch_size must be a whole number, at least 1"):
            in_batches(run, print, size)
    with pytest.raises(ConfigurationError, match='batch_size go with mode="replay"'):
        idempotent_batches(run, key="k", batch_size=4)
