"""Spark starts a copy of a slow task, takes the result of the faster one and kills the other in the middle."""

import pytest

from tests.adapters.spark import programs
from tests.adapters.spark.support.cluster import Cluster
from tests.adapters.spark.support.frames import ROWS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    started = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        started.start()
        yield started
    finally:
        started.close()


def test_a_speculative_copy_neither_loses_nor_repeats(cluster, mysql_store, tmp_path):
    report = programs.run(
        "speculation",
        url=mysql_store.url,
        table=mysql_store.table,
        folder=str(tmp_path),
        settings=cluster.settings,
    )
    both = ["0", "1"]
    assert report["dedup_of_an_rdd"] == {"count": ROWS, "again": ROWS, "attempts": both}
    assert report["dedup_of_a_frame"] == {"count": ROWS, "again": ROWS, "attempts": both}
    # The copy waits for the first attempt's keys, whose lease is kept alive. (How long is a pending claim of no row.)
    assert report["effects_with_leave"] == {"never": 0, "done": 100, "twice": 0, "attempts": both}
    refusal = report["effects_without_leave"]["error"]
    assert refusal.startswith("ConfigurationError: spark.speculation is on")
    assert "allow_speculation=True" in refusal
