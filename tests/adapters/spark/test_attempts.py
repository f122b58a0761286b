"""One driver at a time has a run, and what is published is what one attempt has staged."""

import shutil
from pathlib import Path
from urllib.parse import urlparse

import pytest
import sqlalchemy as sa
from pyspark import accumulators
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from idempotent.adapters.spark import IdempotentRun, idempotent_batches
from idempotent.errors import (
    ConfigurationError,
    RunConflictError,
    RunFencedError,
    UnpublishedClaimsError,
)
from tests.adapters.spark.support.frames import ROWS

NAMES = ["a b", "a#b", "a?b", "a%b", "a%20b", "é", "日 [x] {y}", "*"]


class PublishError(Exception):
    """What a publishing function raises."""


@pytest.fixture
def begin(sqlite_store):
    """Begin runs of one consumer, closed at the end."""
    begun = []

    def run(run_id="r1", **options):
        begun.append(IdempotentRun.begin(sqlite_store, consumer="orders", run_id=run_id, **options))
        return begun[-1]

    yield run
    for each in begun:
        each.close()


@pytest.fixture
def staging(tmp_path):
    return str(tmp_path / "staging")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def publish(run, out):
    return run.publish(lambda publication: publication.copy_to(str(out)))


def values(spark, out):
    return sorted(row["v"] for row in spark.read.parquet(str(out)).collect())


@pytest.mark.slow
def test_a_driver_that_was_taken_over_publishes_nothing_and_says_so(spark, begin, frame, staging, out):
    zombie = begin()
    few = zombie.dedup(frame.where("v < 100"), key="k", unique=True)
    zombie.stage(few, staging)
    with pytest.raises(RunConflictError, match="another driver has it"):
        begin(on_conflict="fail")
    later = begin(takeover=True)
    later.stage(later.dedup(frame.where("v < 80"), key="k", unique=True), staging)
    for call in (lambda: publish(zombie, out), zombie.abort):
        with pytest.raises(RunFencedError, match="taken over by another driver"):
            call()
    with pytest.raises(Exception, match=r"RunFencedError.*taken over by another driver"):
        few.count()
    assert publish(later, out)
    assert values(spark, out) == list(range(80))
    # What the earlier attempt claimed and the later one did not meet is new to another run.
    other = begin("r2")
    assert other.dedup(frame.where("v < 120"), key="k", unique=True).count() == 40


def test_an_orderly_end_lets_the_next_driver_begin_at_once(begin):
    with begin(lease_s=300.0):
        pass
    with begin(on_conflict="fail") as second:
        assert second.handle.ref.epoch == 2


@pytest.mark.slow
def test_rows_that_were_claimed_and_are_not_published_are_refused(begin, frame, staging, out):
    run = begin()
    new = run.dedup(frame, key="k", unique=True)
    run.stage(new.limit(10), staging)
    with pytest.raises(UnpublishedClaimsError, match="10 rows would be published"):
        publish(run, out)
    assert not out.exists()
    assert not run.is_prepared
    # All of them, by an evaluation of the same attempt.
    assert run.stage(new, staging).count() == ROWS
    assert publish(run, out)
    own = begin("r2")
    own.dedup(frame.withColumn("k", F.concat("k", F.lit("x"))), key="k", unique=True).count()
    with pytest.raises(UnpublishedClaimsError, match=f"claimed {ROWS} keys, and 0 rows"), own.publishing():
        pytest.fail("published rows that nothing has counted")


@pytest.mark.slow
def test_of_two_frames_of_a_run_with_common_keys_one_has_each_row(spark, begin, frame, tmp_path, out):
    run = begin()
    one, two = (run.dedup(frame.where(each), key="k", unique=True) for each in ("v < 600", "v >= 400"))
    for _ in range(2):
        assert [one.count(), two.count()] == [600, 400]
    for number, each in enumerate((one, two)):
        run.stage(each, str(tmp_path / f"staging-{number}"))
    assert publish(run, out)
    assert values(spark, out) == list(range(ROWS))


@pytest.mark.slow
def test_a_committed_run_is_not_published_again(spark, begin, frame, staging, out):
    for run, expected in twice(begin):
        run.stage(run.dedup(frame, key="k", unique=True), staging)
        assert publish(run, out) is expected
    with pytest.raises(ConfigurationError, match=r"is COMMITTED.*use publish"), run.publishing():
        pytest.fail("published twice")
    assert values(spark, out) == list(range(ROWS))


def twice(begin):
    first = begin()
    yield first, True
    first.close()
    yield begin(), False


@pytest.mark.slow
def test_a_publication_that_failed_is_repeated_with_the_staged_rows_alone(spark, begin, frame, staging, out):
    first = begin()
    first.stage(first.dedup(frame.where("v < 300"), key="k", unique=True), staging)

    def fails(publication):
        publication.copy_to(str(out))
        raise PublishError

    with pytest.raises(PublishError):
        first.publish(fails)
    before = sorted(out.iterdir())
    first.close()
    second = begin()
    assert second.is_prepared
    new = second.dedup(frame, key="k", unique=True)
    assert second.stage(new, staging).count() == 300
    with pytest.raises(Exception, match=r"RunFencedError.*not evaluated again"):
        new.count()
    with pytest.raises(ConfigurationError, match="staged nothing in elsewhere"):
        second.stage(new, "elsewhere")
    assert publish(second, out)
    assert sorted(out.iterdir()) == before
    assert values(spark, out) == list(range(300))


@pytest.mark.slow
def test_a_publication_that_can_never_succeed_is_aborted_and_made_anew(spark, begin, frame, staging, out):
    first = begin(fingerprint=b"lost")
    first.stage(first.dedup(frame.where("v < 300"), key="k", unique=True), staging)
    shutil.rmtree(staging)
    with pytest.raises(FileNotFoundError):
        publish(first, out)
    first.close()
    second = begin()
    with pytest.raises(RunFencedError, match=r"may have published.*abort\(unpublished=True\)"):
        second.abort()
    with pytest.raises(ConfigurationError, match="unpublished"):
        second.abort(unpublished="yes")
    second.abort(unpublished=True)
    second.close()
    third = begin(fingerprint=b"found")
    third.stage(third.dedup(frame, key="k", unique=True), staging)
    assert publish(third, out)
    assert values(spark, out) == list(range(ROWS))


@pytest.mark.slow
def test_a_file_that_comes_after_the_list_was_made_is_not_published(spark, begin, frame, staging, out):
    run = begin()
    run.stage(run.dedup(frame.where("v < 100"), key="k", unique=True), staging)
    (folder,) = Path(staging).iterdir()
    frame.write.mode("append").parquet(str(folder))
    assert publish(run, out)
    assert values(spark, out) == list(range(100))


@pytest.mark.slow
@pytest.mark.parametrize("sink", ["copies", "jdbc"])
def test_a_driver_that_lost_its_run_while_it_stood_still_publishes_nothing(
    begin, frame, staging, out, sqlite_store, sink
):
    first = begin("r1")
    staged = first.stage(first.dedup(frame.where("v < 9"), key="k", unique=True), staging)
    engine = sa.create_engine(sqlite_store.url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE rows (k VARCHAR(50) PRIMARY KEY, v INT)"))

    def publish_late(publication):
        begin("r1", takeover=True).abort(unpublished=True)
        publication.copy_to(str(out)) if sink == "copies" else publication.jdbc(staged, "rows")

    with pytest.raises(RunFencedError):
        first.publish(publish_late)
    assert not out.exists()
    with engine.begin() as connection:
        assert connection.execute(sa.text("SELECT COUNT(*) FROM rows")).scalar() == 0
    engine.dispose()


@pytest.mark.slow
def test_a_staged_file_that_is_gone_is_an_error_whatever_the_session_ignores(
    spark, begin, frame, staging, out
):
    run = begin("r1")
    staged = run.stage(run.dedup(frame.where("v < 100"), key="k", unique=True), staging)
    for file in staged.inputFiles():
        Path(urlparse(file).path).unlink()
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        with pytest.raises(Exception, match=r"(?i)not exist"):
            run.publish(lambda publication: run.stage(frame, staging).write.parquet(str(out)))
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")
    assert run.is_prepared


def test_an_empty_frame_is_staged_and_published(begin, frame, staging, out):
    run = begin()
    staged = run.stage(run.dedup(frame.where("v < 0"), key="k", unique=True), staging)
    assert (staged.count(), staged.columns) == (0, ["k", "v"])
    assert publish(run, out)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["dedup", "replay"])
def test_a_streaming_frame_is_refused_with_what_to_use(spark, begin, frame, tmp_path, mode):
    frame.write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "in"))
    run = begin()
    with pytest.raises(ConfigurationError, match="foreach_batch"):
        run.dedup(stream, key="k")
    options = {} if mode == "dedup" else {"mode": mode, "handler": dict, "schema": frame.schema}
    filtered = stream.mapInArrow(idempotent_batches(run, key="k", **options), frame.schema)
    query = (
        filtered.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException, match=r"micro-batch 0 of a stream.*foreach_batch"):
        query.awaitTermination()


@pytest.mark.slow
def test_runs_leave_no_counters_behind(begin, frame):
    few = frame.where("v < 10").coalesce(1)
    sizes = []
    for number in range(3):
        with begin(f"r{number}") as run:
            run.claim(run.dedup(few, key="k", unique=True))
            assert run.counts == {"new": 0 if number else 10, "duplicate": 10 if number else 0, "conflict": 0}
            assert run.publish(lambda _: None)
        assert run.counts == {"new": 0, "duplicate": 0, "conflict": 0}
        sizes.append(len(accumulators._accumulatorRegistry))
    assert sizes[0] == sizes[2]


@pytest.mark.slow
def test_a_name_with_map_in_it_is_no_map(spark, begin):
    named = spark.sql(
        "SELECT 'a' AS k, named_struct('roadmap', 1) AS s UNION ALL SELECT 'a', named_struct('roadmap', 0)"
    )
    assert begin().dedup(named, key="k").collect()[0]["s"]["roadmap"] == 0


@pytest.mark.parametrize("kind", ["map('x', 1)", "array(map('x', 1))", "named_struct('m', map('x', 1))"])
def test_columns_without_an_order_need_order_by(spark, begin, kind):
    rows = spark.sql(f"SELECT 'a' AS k, 1 AS v, {kind} AS m UNION ALL SELECT 'a', 0, {kind}")
    run = begin()
    with pytest.raises(ConfigurationError, match="have no order"):
        run.dedup(rows, key="k")
    assert run.dedup(rows, key="k", order_by=["v"]).collect()[0]["v"] == 0


@pytest.mark.parametrize("kind", ["make_interval(1)", "map('x', make_interval(1))"])
def test_calendar_intervals_are_refused_with_what_to_do(spark, begin, kind):
    rows = spark.sql(f"SELECT 'a' AS k, {kind} AS i")
    with pytest.raises(ConfigurationError, match=r"columns i are calendar intervals.*cast them to string"):
        begin().dedup(rows, key="k", order_by=["k"])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_staging_folder_has_any_name_that_the_file_system_takes(spark, begin, frame, tmp_path, out, name):
    run = begin()
    run.stage(run.dedup(frame.where("v < 9"), key="k", unique=True), str(tmp_path / name / "staging"))
    assert publish(run, out)
    assert values(spark, out) == list(range(9))


@pytest.mark.slow
def test_copies_go_to_a_folder_of_any_name(begin, frame, staging, tmp_path):
    run = begin()
    run.stage(run.dedup(frame.where("v < 9"), key="k", unique=True), staging)
    with run.publishing() as publication:
        for scheme in ("file://", "file:", ""):
            for name in NAMES:
                folder = tmp_path / scheme.replace("/", "s") / name
                publication.copy_to(f"{scheme}{folder}")
                assert len(list(folder.iterdir())) == len(publication.files)
