"""Spark Connect: the same without a SparkContext, which the program puts out of reach."""

import secrets

import pytest

from tests.spark import programs
from tests.spark.frames import ROWS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]


@pytest.fixture(scope="module")
def said(redis_url, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("connect"))
    return programs.run("connect", url=redis_url, prefix=f"t{secrets.token_hex(6)}:", folder=folder)


def test_dedup_works_on_connect(said):
    assert said["dedup"] == {
        "counts": [ROWS, 5, False, ROWS],
        "after a failure": ROWS,
        "counters": {},
        "later": {"duplicate": ROWS},
    }


def test_batches_are_filtered_on_connect(said):
    assert said["batches"] == [ROWS, False, ROWS]


def test_results_are_replayed_on_connect(said):
    assert said["replay"] == [ROWS, ROWS, ROWS]


def test_effects_happen_once_on_connect(said):
    assert said["foreach"] == [ROWS, ROWS]


def test_the_column_function_works_on_connect(said):
    assert said["column_function"] == [ROWS, ROWS]


def test_errors_can_be_read_on_connect(said):
    assert "null key: a row has no value in one of k" in said["a_failed_key"]["error"]
    assert "RunFencedError: run 'r1' of consumer 'aborted'" in said["an_aborted_run"]["error"]


def test_effects_under_speculation_are_refused_on_connect(said):
    assert said["foreach_under_speculation"]["error"].startswith(
        "ConfigurationError: spark.speculation is on"
    )
