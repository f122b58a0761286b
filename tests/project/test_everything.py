"""`make test-all`, with steps that end as they are told."""

import subprocess
import sys

import pytest

from tests.project.everything import ROOT, count

MAKE = """#!/bin/sh
echo "CI=$CI"
case "$1" in
  test) echo "= 2 failed, 30 passed, 1 skipped, 1 error in 4.20s (0:00:04) ="; exit 2 ;;
  pythons) echo "40 passed in 1.0s"; echo "50 passed, 2 warnings in 61.00s (0:01:01)" ;;
  brief-torture) echo "13 of 14 runs kept the promise" ;;
esac
"""


@pytest.fixture
def everything(tmp_path):
    make = tmp_path / "make"
    make.write_text(MAKE)
    make.chmod(0o755)

    def run(*options):
        command = [
            sys.executable,
            "-m",
            "tests.project.everything",
            "--make",
            str(make),
            "--logs",
            str(tmp_path),
            *options,
        ]
        return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=300)

    return run


def row(output, step):
    [line] = [line for line in output.splitlines() if line.startswith(f"│ {step} ")]
    return [cell.strip() for cell in line.strip("│").split("│")][1:4]


def test_a_step_runs_even_if_one_before_it_failed_and_the_exit_code_says_so(everything, tmp_path):
    done = everything("--only", "gate,pythons,torture")
    assert done.returncode == 1, done.stderr
    assert row(done.stdout, "gate") == ["FAILED", "30", "3"]
    assert row(done.stdout, "pythons") == ["passed", "90", "0"]
    assert row(done.stdout, "torture") == ["passed", "13", "1"]
    assert (tmp_path / "pythons.log").read_text().startswith("CI=true\n40 passed")


def test_with_only_the_chosen_steps_run(everything):
    done = everything("--only", "pythons,slow")
    assert done.returncode == 0, done.stderr
    assert row(done.stdout, "slow") == ["passed", "0", "0"]
    assert "gate" not in done.stdout


def test_an_unknown_step_is_refused_with_those_there_are(everything):
    done = everything("--only", "slwo")
    assert done.returncode == 1
    assert "no such step: slwo. Known: gate, slow, newest, pythons, torture" in done.stderr


def test_dots_of_pytest_and_summaries_of_single_tests_count_nothing():
    assert count("....... [ 50%]\nFAILED tests/a.py::test_b - 3 failed, 4 passed\n") == (0, 0)
