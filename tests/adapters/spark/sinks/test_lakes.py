"""publication.delta and publication.iceberg: killed at every step, and each row is in the table once in the end."""

import json
import random
import signal

import pytest

from idempotent.adapters.spark import StoreConfig
from idempotent.adapters.spark.ledger import RunState, open_ledger
from tests.adapters.spark.programs import driver
from tests.adapters.spark.sinks import lakes
from tests.adapters.spark.sinks.driver import ROWS, RUN_ID, Job
from tests.adapters.spark.sinks.rivals import EXPECTED, TRIALS, fight
from tests.adapters.spark.support import migrated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1100)]
# Where the runs of a driver die, the last one in the middle of something, and the state of each then.
DEATHS = [
    {
        "after_prepare": RunState.PREPARED,
        "before_publish": RunState.PREPARED,
        "after_publish": RunState.PREPARED,
        "before_commit": RunState.PREPARED,
        "after_commit": RunState.COMMITTED,
        "files": RunState.PREPARED,
    },
    # When it dies the format has committed; the run's commit may be a moment later.
    {"commit": None},
]


class Lake:
    """Tables of one format, and a ledger."""

    def __init__(self, sink, folder, url):
        self.sink, self.folder = sink, folder
        self.store = {"url": url, "table": migrated.empty_table(url)}

    def job(self, deaths, **options):
        where = self.folder / "tables"
        settings = lakes.settings(self.sink, where)
        staging = str(self.folder / "staging")
        return Job(self.sink, str(where), self.store, staging, deaths, settings=settings, **options)

    def run(self, deaths, **options):
        return driver(*self.job(deaths, **options).words, **lakes.environment())

    def again(self, *consumers):
        """Begin the runs again; what is in their tables then."""
        done = self.run(dict.fromkeys(consumers, ""))
        assert done.returncode == 0, done.stderr[-5000:]
        tables = json.loads(done.stdout.splitlines()[-1])
        return {consumer: [tuple(row) for row in rows] for consumer, rows in tables.items()}

    def state(self, consumer):
        with open_ledger(StoreConfig(**self.store)) as ledger:
            return ledger.store.newest(consumer, RUN_ID).state


@pytest.fixture(params=["delta", "iceberg"])
def lake(request, tmp_path, postgres_url):
    return Lake(request.param, tmp_path, postgres_url)


def truth(consumer):
    return [(number, f"{consumer}-{number}") for number in range(ROWS)]


def test_runs_killed_at_any_step_are_in_the_table_once(lake):
    consumers = {}
    for deaths in DEATHS:
        names = {at: f"t{len(consumers) + number}" for number, at in enumerate(deaths)}
        consumers |= names
        done = lake.run({name: at for at, name in names.items()}, lease_s=3.0)
        assert done.returncode == -signal.SIGKILL, done.stderr[-5000:]
        for at, state in deaths.items():
            assert state in (None, lake.state(names[at])), at
    tables = lake.again(*consumers.values())
    for at, consumer in consumers.items():
        assert tables[consumer] == truth(consumer), at
        assert lake.state(consumer) is RunState.COMMITTED


@pytest.mark.timeout(3600)
def test_two_drivers_that_are_struck_at_random_publish_each_row_once(lake, tmp_path):
    chance = random.Random(11)
    consumers = [f"t{trial}" for trial in range(TRIALS)]
    codes = [fight(lake.job({consumer: ""}), chance, tmp_path, lakes.environment()) for consumer in consumers]
    tables = lake.again(*consumers)
    for consumer, ended in zip(consumers, codes, strict=True):
        assert tables[consumer] == truth(consumer), ended
    assert {code for ended in codes for code in ended} >= {0, -signal.SIGKILL}


def what_happens(lake, mode):
    arguments = {
        "sink": lake.sink,
        "folder": str(lake.folder),
        "settings": lakes.settings(lake.sink, lake.folder / "tables"),
        "store": lake.store,
        "mode": mode,
    }
    done = driver("-m", "tests.adapters.spark.sinks.scenarios", json.dumps(arguments), **lakes.environment())
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_lake_on_connect(lake):
    found = what_happens(lake, "connect")
    assert found["a_table_by_its_name"] == [True, False, 100]
    assert found["other_writers_meanwhile"] == sorted([*range(100), 1])


def test_tables_of_a_lake_without_a_kill(lake):
    found = what_happens(lake, "classic")
    assert found["a_table_by_its_name"] == [True, False, 100]
    *counts, said = found["a_driver_that_was_paused_in_its_commit"]
    assert counts == [True, 100, 100]
    assert any(each in said for each in EXPECTED)
    assert found["other_writers_meanwhile"] == sorted([*range(100), 1])
    said, note, *rest = found["a_schema_that_changed_between_two_attempts"]
    assert "more" in said or "column" in said
    assert note.startswith("run 'r1' of consumer 'changed', generation 1, epoch 1 stays PREPARED")
    assert rest == [True, True, 100]
    assert "publishes two frames to" in found["two_frames_to_one_table"]["error"]
    assert found["an_abort_with_the_rows_taken_away"] == [True, 100]
    assert found["a_stream"] == [[0, 1], 100]
    assert "has a commit of another run 'r1'" in found["two_ledgers_with_the_same_names"]["error"]
    if lake.sink == "iceberg":
        assert found["a_table_that_was_rolled_back"] == [10, True, 100]
    else:
        assert found["a_relative_path"] == [True, 100]
