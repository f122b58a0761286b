"""Effects in batches, and effects that commit together with their claims."""

import os
import signal
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest
import sqlalchemy as sa
from pyspark import TaskContext

from idempotent.adapters.spark import (
    IdempotentRun,
    StoreConfig,
    abort_run,
    idempotent_batches,
    idempotent_foreach,
)
from idempotent.adapters.spark.ledger import open_ledger
from idempotent.adapters.spark.ledger.claims import ClaimState
from idempotent.adapters.spark.ledger.handler_claims import HandlerClaims
from idempotent.errors import (
    ConfigurationError,
    RunConflictError,
    RunFencedError,
    StoreBusyError,
    TransactionEscapedError,
)
from tests.adapters.spark.ledger.counting import claims_of
from tests.adapters.spark.support import migrated
from tests.adapters.spark.support.faults import dies, is_first_attempt
from tests.adapters.spark.support.frames import ROWS
from tests.adapters.spark.support.rows import RowsWritten, exit_code_of
from tests.adapters.spark.test_handlers import OUT, hash_of

FEW = [{"k": f"k{number}", "v": number} for number in range(10)]


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def database(request, tmp_path):
    """An empty ledger in a database of each kind."""
    if request.param == "sqlite":
        return StoreConfig(f"{migrated.sqlite_url(tmp_path / 'runs.db')}?timeout=30")
    url = request.getfixturevalue(f"{request.param}_url")
    return StoreConfig(url, table=migrated.empty_table(url))


@pytest.fixture
def written(database):
    """A table beside the ledger, for the effects."""
    rows = RowsWritten(database.url, f"{database.table}_written")
    rows.create()
    yield rows
    rows.drop()


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


def in_transactions(run, handler, batch_size=4, **options):
    return in_batches(run, handler, batch_size, transactional=True, **options)


# Batches


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
    other = HandlerClaims(run.ledger, run.handle.ref, 600)
    other.acquire([hash_of(run, "k1")])

    def handle(rows):
        seen.append(keys(rows))
        other.give_up([hash_of(run, "k1")])

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
            in_batches(run, lambda rows: [effects.add(row["k"]) for row in rows], 7, chunk=50)
        )
        assert run.counts == {**counted, "conflict": 0}
    assert effects.words == [f"k{number}" for number in range(30)]


# Transactions


def test_what_a_handler_writes_commits_with_its_claims(database, written, begin):
    run = begin(database)
    for _ in range(2):
        in_transactions(run, written.write)([*FEW, *FEW])
        assert written.times == dict.fromkeys(keys(FEW), 1)
    in_transactions(run, lambda rows, connection: None)([{"k": "nothing is written"}])
    assert claims_of(run.ledger, run.handle.ref)[ClaimState.DONE] == len(FEW) + 1
    idempotent_foreach(
        run, key="k", handler=lambda row, connection: written.write([row], connection), transactional=True
    )([{"k": "alone"}, *FEW])
    assert written.times == dict.fromkeys([*keys(FEW), "alone"], 1)


def test_a_handler_that_raises_leaves_neither_claims_nor_writes(database, written, begin):
    run = begin(database)

    def handle(rows, connection):
        written.write(rows, connection)
        if "k5" in keys(rows):
            raise ValueError("not yet")

    with pytest.raises(ValueError, match="not yet"):
        in_transactions(run, handle)(FEW)
    assert sorted(written.times) == keys(FEW[:4])
    assert sum(claims_of(run.ledger, run.handle.ref).values()) == 4
    in_transactions(run, written.write)(FEW)
    assert written.times == dict.fromkeys(keys(FEW), 1)


@pytest.mark.parametrize("stop", ["before the commit", "after the commit"])
def test_a_process_that_dies_repeats_and_loses_nothing(database, written, begin, stop):
    run = begin(database, wait_s=20)

    def handle(rows, connection):
        if stop == "after the commit" and "k4" in keys(rows):
            os._exit(7)
        written.write(rows, connection)
        if "k5" in keys(rows):
            os._exit(7)

    assert exit_code_of(in_transactions(run, handle), FEW) == 7
    assert written.times == dict.fromkeys(keys(FEW[:4]), 1)
    # At once: no lease of 600 seconds is in the way.
    in_transactions(run, written.write)(FEW)
    assert written.times == dict.fromkeys(keys(FEW), 1)


def test_of_two_attempts_at_a_partition_one_writes_each_row(database, written, begin):
    run = begin(database)

    def handle(rows, connection):
        written.write(rows, connection)
        time.sleep(0.05)

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(in_transactions(run, handle, 3), FEW) for _ in range(3)]:
            done.result(30)
    assert written.times == dict.fromkeys(keys(FEW), 1)


def test_a_driver_that_takes_over_waits_for_open_transactions_and_fences_all_later_ones(
    database, written, begin
):
    run, writing, go_on = begin(database), threading.Event(), threading.Event()

    def handle(rows, connection):
        written.write(rows, connection)
        writing.set()
        go_on.wait(30)

    with ThreadPoolExecutor(2) as pool:
        zombie = pool.submit(in_transactions(run, handle), FEW)
        writing.wait(30)
        begins = pool.submit(begin, database, takeover=True)
        time.sleep(0.5)
        assert not begins.done()
        go_on.set()
        begins.result(30)

        def go_through():
            zombie.result(30)
            in_transactions(run, handle)([{"k": "late"}])  # SQLite may have let it through with all batches

        with pytest.raises(RunFencedError, match="taken over by another driver"):
            go_through()
    in_transactions(begins.result(), written.write)(FEW)
    assert written.times == dict.fromkeys(keys(FEW), 1)


@pytest.mark.parametrize("end", ["commit", "rollback", "statement"])
def test_a_handler_that_ends_the_transaction_is_refused(database, written, begin, end):
    run = begin(database)

    def handle(rows, connection):
        written.write(rows, connection)
        if end == "statement":
            connection.execute(sa.text("COMMIT"))
        else:
            getattr(connection, end)()

    with pytest.raises(TransactionEscapedError):
        in_transactions(run, handle)(FEW)
    assert written.times == {}
    assert sum(claims_of(run.ledger, run.handle.ref).values()) == 0


@pytest.mark.parametrize("fails", [True, False], ids=["and fails", "and goes on"])
@pytest.mark.parametrize("hidden", ["by a cursor", "by the driver"])
def test_a_commit_that_is_not_seen_loses_no_effect(database, written, begin, hidden, fails):
    """It breaks the promise: effects may be there twice. But a retry must not take the keys for done."""
    run, calls = begin(database, wait_s=20), []

    def handle(rows, connection):
        calls.append(rows)
        half = rows[: len(rows) // 2]
        written.write(half, connection)
        if len(calls) == 1:
            raw = connection.connection
            raw.cursor().execute("COMMIT") if hidden == "by a cursor" else raw.driver_connection.commit()
            if fails:
                raise ValueError("not yet")
        written.write(rows[len(half) :], connection)

    for _ in range(3):  # as Spark tries a task again
        with suppress(ValueError, TransactionEscapedError):
            in_transactions(run, handle)(FEW)
            break
    assert set(written.times) == set(keys(FEW))


def test_what_follows_an_ignored_error_that_ended_the_transaction_is_not_committed(sqlite_store, begin):
    written = RowsWritten(sqlite_store.url, "written")
    written.create(unique=True)

    def handle(rows, connection):
        written.write(rows, connection)
        try:
            connection.execute(sa.text("INSERT OR ROLLBACK INTO written (k) VALUES ('k0')"))
        except sa.exc.IntegrityError:
            connection.execute(sa.text("INSERT INTO written (k) VALUES ('without a claim')"))

    with pytest.raises(TransactionEscapedError, match="let it pass"):
        in_transactions(begin(sqlite_store), handle)(FEW)
    assert written.times == {}


def test_a_transaction_that_gets_no_lock_in_time_begins_again_for_as_long_as_the_run_waits(tmp_path, begin):
    file = tmp_path / "runs.db"
    store = StoreConfig(f"{migrated.sqlite_url(file)}?timeout=0.01")
    written = RowsWritten(store.url, "written")
    written.create()
    brief, patient = begin(store, "r1", wait_s=0.3), begin(store, "r2", wait_s=30.0)
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as blocking:
        blocking.execute("BEGIN IMMEDIATE")
        with pytest.raises(RunConflictError, match="4 keys of"):
            in_transactions(brief, written.write)(FEW[:4])
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(in_transactions(patient, written.write), FEW)
            time.sleep(0.3)
            assert not done.done()
            blocking.execute("ROLLBACK")
            done.result(30)
    assert written.times == dict.fromkeys(keys(FEW), 1)


def test_claims_of_effects_without_transactions_are_waited_for_and_taken_over(database, written, begin):
    run = begin(database, wait_s=0.5)
    ref, held, done = run.handle.ref, hash_of(run, "k1"), hash_of(run, "k2")
    other = HandlerClaims(run.ledger, ref, 600)
    other.acquire([held, done])
    other.finish([(done, None)])
    with pytest.raises(RunConflictError, match=r"1 keys of .* held by other attempts"):
        in_transactions(run, written.write)(FEW[:4])
    assert sorted(written.times) == ["k0", "k3"]
    in_transactions(begin(database, takeover=True), written.write)(FEW[:4])
    assert written.times == dict.fromkeys(["k0", "k1", "k3"], 1)
    # How long the first one has waited is a pending claim of no row.
    assert claims_of(run.ledger, ref) == {ClaimState.OWNED: 0, ClaimState.PENDING: 1, ClaimState.DONE: 4}


def test_what_a_transaction_cannot_have_is_refused_on_the_driver(redis_store, sqlite_store, begin):
    with pytest.raises(
        ConfigurationError, match=r"transactional=True needs the ledger in the SQL database.*Redis"
    ):
        in_transactions(begin(redis_store), print)
    run = begin(sqlite_store)
    with pytest.raises(ConfigurationError, match="chunk cannot go with transactional=True"):
        in_transactions(run, print, chunk=5)
    for size in (0, True, "4"):
        with pytest.raises(ConfigurationError, match="batch_size must be a whole number, at least 1"):
            in_batches(run, print, size)
    with pytest.raises(ConfigurationError, match="transactional"):
        idempotent_foreach(run, key="k", handler=print, transactional=1)
    with pytest.raises(ConfigurationError, match='batch_size go with mode="replay"'):
        idempotent_batches(run, key="k", batch_size=4)


@pytest.mark.slow
def test_workers_that_die_and_handlers_that_raise_write_each_row_once(spark, frame, database, written, begin):
    def handle(rows, connection):
        written.write(rows, connection)
        if is_first_attempt() and 150 in [row["v"] for row in rows]:
            dies()
        if TaskContext.get().attemptNumber() == 0 and 600 in [row["v"] for row in rows]:
            raise ValueError("not yet")

    run = begin(database)
    frame.foreachPartition(in_transactions(run, handle, 20))
    assert written.times == {f"k{v}": 1 for v in range(ROWS)}
    # A task that failed counts nothing: what it had written by then is a duplicate to the next try.
    counted = run.counts
    assert (sum(counted.values()), counted["duplicate"]) == (ROWS, 140 + 100)
    # Two tasks at the same keys at once.
    both = spark.sparkContext.parallelize([{"k": f"x{v}", "v": v} for v in range(100)] * 2, 2)
    both.foreachPartition(in_transactions(run, handle, 7))
    assert written.times == {f"k{v}": 1 for v in range(ROWS)} | {f"x{v}": 1 for v in range(100)}
    assert {name: count - counted[name] for name, count in run.counts.items()} == {
        "new": 100, "duplicate": 100, "conflict": 0
    }  # fmt: skip


@pytest.mark.slow
def test_a_driver_takes_over_between_the_transactions_of_handlers_that_live(database, written, begin):
    """There is always one that is open; on MySQL whoever waits has a place in the queue for the run's row."""
    if not database.url.startswith("mysql"):
        pytest.skip(
            "SQLite has one writer, and PostgreSQL no such queue: there a takeover may wait for wait_s"
        )

    def handle(rows, connection):
        written.write(rows, connection)
        time.sleep(2)

    run, work = begin(database), [{"k": f"k{number}"} for number in range(40)]
    with ThreadPoolExecutor(4) as pool:
        tasks = []
        for number in range(4):
            tasks.append(pool.submit(in_transactions(run, handle, 1), work[number::4]))
            time.sleep(0.5)
        begin(database, takeover=True, wait_s=30)
        for task in tasks:
            with pytest.raises(RunFencedError):
                task.result(60)


@pytest.mark.slow
def test_nobody_waits_for_the_transaction_of_a_process_that_stands_still(database, written):
    """It has the run's row, which whoever takes the run over wants: each says so in time, and goes on afterwards."""
    if database.url.startswith("sqlite"):
        pytest.skip("the file has one writer, whose time is `timeout`")
    name = {"consumer": "orders", "run_id": "r1"}

    def handle(rows, connection):
        written.write(rows, connection)
        os.kill(os.getpid(), signal.SIGSTOP)

    pid = os.fork()
    if pid == 0:
        with IdempotentRun.begin(database, **name, lease_s=1.0) as run:
            in_transactions(run, handle)(FEW[:2])
        os._exit(0)
    try:
        assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
        time.sleep(1.5)
        began = time.monotonic()
        for options in ({}, {"takeover": True}):
            with pytest.raises(
                RunConflictError,
                match="a transaction of one of its handlers has not ended, its process works on",
            ):
                IdempotentRun.begin(database, **name, wait_s=0.5, **options)
        with pytest.raises(
            RunConflictError, match="a transaction of one of its handlers has not ended, its process works on"
        ):
            abort_run(database, **name)
        with open_ledger(database) as ledger:
            row = ledger.store.newest(**name)
            with suppress(StoreBusyError):  # on PostgreSQL a lease is not part of what is locked
                ledger.end_lease(row.ref)
            # Another run that meets its keys waits for no lock either, but by its own patience.
            assert not ledger.abort_lapsed(row.ref.token)
        assert time.monotonic() - began < 45  # less than MySQL's own limit for one lock
    finally:
        os.kill(pid, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert written.times == dict.fromkeys(keys(FEW[:2]), 1)
    assert abort_run(database, **name)
