"""Spark Connect: the same without a SparkContext, which the program puts out of reach."""

import secrets

import pytest

from tests.adapters.spark import programs
from tests.adapters.spark.support.frames import ROWS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]


def test_everything_but_rdds_works_on_connect(redis_url, tmp_path):
    report = programs.run("connect", url=redis_url, prefix=f"t{secrets.token_hex(6)}:", folder=str(tmp_path))
    assert report["dedup"] == {
        "counts": [ROWS, 5, False, ROWS],
        "expressions": [f"k{number}" for number in range(ROWS - 300, ROWS)],
        "staged": [ROWS, ROWS],
        "after a failure": ROWS,
        "counters": {},
        "later": {"duplicate": ROWS},
    }
    assert report["batches"] == [ROWS, False, ROWS]
    assert report["replay"] == [ROWS, ROWS, ROWS]
    assert report["foreach"] == [ROWS, ROWS]
    assert report["foreach_under_speculation"]["error"].startswith(
        "ConfigurationError: spark.speculation is on"
    )
    assert report["column_function"] == [ROWS, ROWS]
    assert "null key: a row has no value in one of k" in report["a_failed_key"]["error"]
    assert "RunFencedError: run 'r1' of consumer 'aborted'" in report["an_aborted_run"]["error"]
