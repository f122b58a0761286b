"""`make test-all`, with steps that end as they are told."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.project.everything import ROOT, count

MAKE = """#!/bin/sh
echo "CI=$CI"
case "$1" in
  test) echo "= 2 failed, 30 passed, 1 skipped, 1 error in 4.20s (0:00:04) ="; exit 2 ;;
  pythons) echo "40 passed in 1.0s"; echo "50 passed, 2 warnings in 61.00s (0:01:01)" ;;
  brief-torture) echo "13 of 14 runs kept the promise" ;;
  slow) sh -c 'trap "sleep 2; echo cleaned up; exit 130" INT; echo began; while :; do sleep 0.1; done' ;;
esac
"""


@pytest.fixture
def command(tmp_path):
    make = tmp_path / "make"
    make.write_text(MAKE)
    make.chmod(0o755)
    start = [sys.executable, "-m", "tests.project.everything", "--make", str(make), "--logs", str(tmp_path)]
    return lambda *options: [*start, *options]


@pytest.fixture
def everything(command):
    def run(*options):
        return subprocess.run(
            command(*options), check=False, capture_output=True, text=True, cwd=ROOT, timeout=300
        )

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
    done = everything("--only", "torture,pythons")
    assert done.returncode == 0, done.stderr
    assert row(done.stdout, "pythons") == ["passed", "90", "0"]
    assert "gate" not in done.stdout


def test_servers_that_cannot_be_had_are_no_failure(everything, tmp_path, monkeypatch):
    """The step asks for them through `timeout`, which here fails as if it took too long."""
    (tmp_path / "timeout").write_text("#!/bin/sh\nexit 124\n")
    (tmp_path / "timeout").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    done = everything("--only", "newest")
    assert done.returncode == 0, done.stderr
    assert row(done.stdout, "newest") == ["not tested", "0", "0"]


def test_interrupted_it_waits_for_what_a_step_has_started_and_shows_what_is_done(command, tmp_path):
    """`make` passes a SIGTERM on, and so may who sent it: two of them are as one."""
    running = subprocess.Popen(command("--only", "gate,slow"), stdout=subprocess.PIPE, text=True, cwd=ROOT)
    log, until = tmp_path / "slow.log", time.monotonic() + 300
    while not (log.exists() and "began" in log.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    running.send_signal(signal.SIGTERM)
    printed, _ = running.communicate(timeout=300)
    assert running.returncode == 130, printed
    assert log.read_text().endswith("cleaned up\n")
    assert row(printed, "gate") == ["FAILED", "30", "3"]


def test_an_unknown_step_is_refused_with_those_there_are(everything):
    done = everything("--only", "slwo")
    assert done.returncode == 1
    assert "no such step: slwo. Known: gate, slow, newest, pythons, lowest, torture" in done.stderr


def test_dots_of_pytest_and_summaries_of_single_tests_count_nothing():
    assert count("....... [ 50%]\nFAILED tests/a.py::test_b - 3 failed, 4 passed\n") == (0, 0)
