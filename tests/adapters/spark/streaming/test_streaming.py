"""foreach_batch: each micro-batch is published once, whatever ends the query."""

import signal
from collections import Counter

import pytest
from pyspark.errors import StreamingQueryException

from idempotent.adapters.spark import foreach_batch
from idempotent.testing.crashpoints import CRASH_VARIABLE
from tests.adapters.spark.programs import driver
from tests.adapters.spark.streaming.streams import CONSUMER, Stream, publish_to

FIRST, SECOND, THIRD = range(100), range(60, 160), range(120, 200)


class PipelineError(Exception):
    """What a handler raises."""


@pytest.fixture
def stream(tmp_path):
    made = Stream(tmp_path)
    for name, ids in (("first", FIRST), ("second", SECOND), ("third", THIRD)):
        made.arrives(name, [*ids, *ids])
    return made


@pytest.fixture
def handled():
    """The runs that a handler saw."""
    return []


@pytest.fixture
def process(sqlite_store, stream, handled):
    """Make the function for foreachBatch. Its handler publishes, and then does what the test says."""

    def make(then=lambda publication: None, sink_id=CONSUMER):
        publish = publish_to(stream.out)

        def handler(new, publication):
            handled.append(publication.run_id)
            publish(new, publication)
            then(publication)

        return foreach_batch(sqlite_store, sink_id=sink_id, key="id", handler=handler, staging=stream.staging)

    return make


def demand_each_once(stream, sink_id=CONSUMER):
    assert stream.published() == {
        f"{sink_id}-0": Counter(range(100)),
        f"{sink_id}-1": Counter(range(100, 160)),
        f"{sink_id}-2": Counter(range(160, 200)),
    }


@pytest.mark.slow
def test_duplicates_in_and_across_micro_batches_are_dropped(spark, stream, process, handled):
    stream.run(spark, process())
    demand_each_once(stream)
    assert len(handled) == 3


@pytest.mark.slow
def test_published_folders_can_be_read_by_spark(spark, stream, process):
    stream.run(spark, process())
    assert spark.read.parquet(stream.out).count() == 200


@pytest.mark.slow
def test_a_batch_whose_handler_raised_after_publishing_is_handled_again_with_the_same_rows(
    spark, stream, process, handled
):
    def raise_in_the_second(publication):
        if publication.run_id.endswith("1"):
            raise PipelineError

    with pytest.raises(StreamingQueryException, match=PipelineError.__name__):
        stream.run(spark, process(then=raise_in_the_second))
    before = stream.published()
    assert len(before) == 2
    stream.run(spark, process())
    assert before[f"{CONSUMER}-1"] == stream.published()[f"{CONSUMER}-1"]
    demand_each_once(stream)
    assert handled == [f"{CONSUMER}-{number}" for number in (0, 1, 1, 2)]


@pytest.mark.slow
def test_a_committed_batch_that_spark_brings_again_is_not_handled_again(spark, stream, process, handled):
    commit = process()

    def commit_and_die(batch, batch_id):
        commit(batch, batch_id)
        raise PipelineError

    for _ in range(2):
        with pytest.raises(StreamingQueryException, match=PipelineError.__name__):
            stream.run(spark, commit_and_die)
    assert len(handled) == 1
    stream.run(spark, process())
    demand_each_once(stream)
    assert len(handled) == len(set(handled)) == 3


@pytest.mark.slow
def test_a_new_checkpoint_under_an_old_sink_id_is_an_error_and_drops_nothing(spark, stream, process, handled):
    stream.run(spark, process())
    stream.arrives("fourth", range(200, 250))
    with pytest.raises(StreamingQueryException, match="RunInputChangedError"):
        stream.run(spark, process(), checkpoint="reset")
    demand_each_once(stream)
    # With a new sink_id, everything is new.
    stream.run(spark, process(sink_id="orders-v2"), checkpoint="fresh")
    assert sum((rows for run, rows in stream.published().items() if "v2" in run), Counter()) == Counter(
        range(250)
    )
    # And the old checkpoint goes on where it was.
    stream.run(spark, process())
    assert stream.published()[f"{CONSUMER}-3"] == Counter(range(200, 250))


@pytest.mark.slow
@pytest.mark.timeout(1100)
def test_a_query_killed_while_it_publishes_goes_on_with_the_same_batch(
    spark, sqlite_store, stream, process, handled
):
    program = ["-m", "tests.adapters.spark.streaming.driver", "classic", sqlite_store.url, str(stream.folder)]
    done = driver(*program, **{CRASH_VARIABLE: "after_publish:2"})
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert set(stream.published()) == {f"{CONSUMER}-0", f"{CONSUMER}-1"}
    stream.run(spark, process())
    demand_each_once(stream)
    assert handled == [f"{CONSUMER}-1", f"{CONSUMER}-2"]


@pytest.mark.slow
@pytest.mark.timeout(1100)
def test_so_it_is_on_spark_connect(sqlite_store, stream):
    program = ["-m", "tests.adapters.spark.streaming.driver", "connect", sqlite_store.url, str(stream.folder)]
    done = driver(*program)
    assert done.returncode == 0, done.stdout + done.stderr
    # What the handler raised, and what the reset checkpoint was answered.
    assert done.stdout.split() == ["PipelineError", "RunInputChangedError"]
    demand_each_once(stream)
    calls = [line.rpartition("-")[2] for line in (stream.folder / "handled").read_text().splitlines()]
    # A handler that raises may be called again before the query ends; what was committed is never handled again.
    assert calls[:1] + calls[-1:] == ["0", "2"]
    assert set(calls[1:-1]) == {"1"}
    assert len(calls[1:-1]) > 1
