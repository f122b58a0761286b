"""publication.jdbc: a driver is killed at every step, and the table has each row once in the end."""

import datetime as dt
import json
import random
import secrets
import signal

import pytest
import sqlalchemy as sa
from pyspark.sql import functions as F
from sqlalchemy.pool import NullPool

from idempotent.adapters.spark import IdempotentRun, StoreConfig
from idempotent.adapters.spark.ledger import RunState, open_ledger
from tests.adapters.spark.programs import driver
from tests.adapters.spark.sinks.driver import ROWS, RUN_ID, Job, do
from tests.adapters.spark.sinks.rivals import TRIALS, fight
from tests.adapters.spark.support import migrated
from tests.adapters.spark.support.frames import ROWS as NUMBERED
from tests.support.privileges import user_of_tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1100)]
# Where a run dies, its state then, and the number of rows in its table.
DEATHS = {
    "after_prepare": (RunState.PREPARED, 0),
    "before_publish": (RunState.PREPARED, 0),
    "after_publish": (RunState.PREPARED, ROWS),
    "before_commit": (RunState.PREPARED, ROWS),
    "after_commit": (RunState.COMMITTED, ROWS),
    "rows": (RunState.PREPARED, None),
}


class Database:
    def __init__(self, url):
        self.store = {"url": url, "table": migrated.empty_table(url)}
        self.engine = sa.create_engine(url, poolclass=NullPool)
        self.url = url

    def do(self, statement):
        with self.engine.begin() as connection:
            answer = connection.execute(sa.text(statement))
            return answer.all() if answer.returns_rows else []

    def alter(self, statement, table):
        wide, narrow = "VARCHAR(50)", "VARCHAR(2)"
        change = "MODIFY k {} NOT NULL" if self.engine.dialect.name == "mysql" else "ALTER COLUMN k TYPE {}"
        self.do(statement.format(table, narrow=change.format(narrow), wide=change.format(wide)))

    def rows(self, table):
        return sorted(self.do(f"SELECT v, k FROM {table}"))

    def state(self, consumer, run_id=RUN_ID):
        with open_ledger(StoreConfig(**self.store)) as ledger:
            return ledger.store.newest(consumer, run_id).state


@pytest.fixture(params=["postgres", "mysql"])
def database(request):
    return Database(request.getfixturevalue(f"{request.param}_url"))


def truth(consumer):
    return [(number, f"{consumer}-{number}") for number in range(ROWS)]


def test_runs_killed_at_any_step_and_begun_again_fill_the_table(spark, database, tmp_path):
    name = f"t{secrets.token_hex(4)}"
    consumers = {at: f"{name}_{number}" for number, at in enumerate(DEATHS)}
    for table in consumers.values():
        database.do(f"CREATE TABLE {table} (k VARCHAR(50) NOT NULL PRIMARY KEY, v INT)")
    job = Job(
        "jdbc", database.url, database.store, str(tmp_path), {each: at for at, each in consumers.items()}, 3.0
    )
    done = driver(*job.words)
    assert done.returncode == -signal.SIGKILL, done.stderr
    for at, (state, count) in DEATHS.items():
        found = len(database.rows(consumers[at]))
        assert (database.state(consumers[at]), found) == (state, found if count is None else count), at
        assert count is not None or 0 < found < ROWS
    for _ in range(2):
        for table in consumers.values():
            do(spark, job, table)
            assert database.state(table) is RunState.COMMITTED
            assert database.rows(table) == truth(table)


@pytest.mark.timeout(3600)
def test_two_drivers_that_are_struck_at_random_insert_each_row_once(spark, database, tmp_path):
    chance, codes = random.Random(11), []
    for trial in range(TRIALS):
        table = f"t{secrets.token_hex(4)}_{trial}"
        database.do(f"CREATE TABLE {table} (k VARCHAR(50) NOT NULL PRIMARY KEY, v INT)")
        job = Job("jdbc", database.url, database.store, str(tmp_path), {table: ""})
        codes.append(fight(job, chance, tmp_path, {}))
        do(spark, job, table)
        assert database.rows(table) == truth(table), codes[-1]
    assert {code for ended in codes for code in ended} >= {0, -signal.SIGKILL}


# What is wrong with the table, what the error says, and what mends it.
WRONG = {
    "a column is missing": (
        "ALTER TABLE {} DROP COLUMN v",
        "has no column 'v'",
        "ALTER TABLE {} ADD COLUMN v INT",
    ),
    "another unique key refuses": (
        "INSERT INTO {} VALUES ('other', 7)",
        "(?i)duplicate|would be lost",
        "DELETE FROM {} WHERE k = 'other'",
    ),
    "a column is too narrow": ("ALTER TABLE {} {narrow}", "(?i)too long", "ALTER TABLE {} {wide}"),
}


@pytest.fixture
def numbered(database):
    """A table for the rows of `frame`."""
    table = f"t{secrets.token_hex(6)}"
    database.do(f"CREATE TABLE {table} (k VARCHAR(50) NOT NULL PRIMARY KEY, v INT, UNIQUE (v))")
    yield table
    database.do(f"DROP TABLE {table}")


@pytest.mark.parametrize("wrong", WRONG)
def test_a_table_that_refuses_leaves_the_run_prepared_until_it_is_mended(
    database, numbered, frame, tmp_path, wrong
):
    break_it, says, mend_it = WRONG[wrong]
    with pytest.raises(Exception, match=says) as failed:
        publish(database, "r1", frame, tmp_path, numbered, before=lambda: database.alter(break_it, numbered))
    (note,) = failed.value.__notes__
    assert note.startswith("run 'r1' of consumer 'orders', generation 1, epoch 1 stays PREPARED")
    assert database.state("orders", "r1") is RunState.PREPARED
    database.alter(mend_it, numbered)
    # Nothing is evaluated again.
    assert publish(database, "r1", frame.where("false"), tmp_path, numbered)
    assert len(database.rows(numbered)) == NUMBERED


def test_a_user_who_may_not_insert_is_told_so_and_the_run_waits(database, numbered, frame, tmp_path):
    name = f"u{secrets.token_hex(4)}"
    with (
        user_of_tables(database.engine, name, [numbered], "SELECT") as url,
        pytest.raises(Exception, match="lacks a right") as failed,
    ):
        publish(database, "r1", frame, tmp_path, numbered, url=url)
    assert "stays PREPARED" in failed.value.__notes__[0]
    assert publish(database, "r1", frame, tmp_path, numbered)
    assert len(database.rows(numbered)) == NUMBERED


def publish(database, run_id, frame, folder, table, before=lambda: None, **options):
    with IdempotentRun.begin(StoreConfig(**database.store), consumer="orders", run_id=run_id) as run:
        staged = run.stage(run.dedup(frame, key="k", unique=True), str(folder / "staging"))
        before()
        return run.publish(lambda publication: publication.jdbc(staged, table, **options))


def test_rows_are_inserted_on_connect(database, numbered, tmp_path):
    arguments = {"store": database.store, "staging": str(tmp_path / "staging"), "table": numbered}
    done = driver("-m", "tests.adapters.spark.sinks.connect", json.dumps(arguments))
    assert done.returncode == 0, done.stderr[-5000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"rows_in_a_table": [True, False]}
    assert len(database.rows(numbered)) == NUMBERED


def test_instants_are_written_in_utc_whatever_the_zones(spark, database, tmp_path):
    table = f"t{secrets.token_hex(6)}"
    kind = "DATETIME(6)" if database.engine.dialect.name == "mysql" else "TIMESTAMPTZ"
    database.do(f"CREATE TABLE {table} (k VARCHAR(50) NOT NULL PRIMARY KEY, happened {kind})")
    # The hour that comes twice in Berlin.
    instants = ["2026-10-25T00:30:00.000001Z", "2026-10-25T01:30:00Z"]
    rows = spark.createDataFrame([(each,) for each in instants], "k string")
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        publish(database, "r1", rows.withColumn("happened", F.col("k").cast("timestamp")), tmp_path, table)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    found = dict(database.do(f"SELECT k, happened FROM {table}"))
    database.do(f"DROP TABLE {table}")
    for text, happened in found.items():
        in_utc = happened if happened.tzinfo else happened.replace(tzinfo=dt.UTC)
        assert in_utc == dt.datetime.fromisoformat(text)
    assert len(found) == len(instants)
