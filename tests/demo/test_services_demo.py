"""`python -m examples.demo services`, in its small form, and the proof that it can fail."""

import json
import os
import subprocess
import sys

import pytest


def demo(folder, *words, **environ):
    return subprocess.run(
        [sys.executable, "-m", "examples.demo", "services", "--flights", "2000", *words],
        env={**os.environ, "TMPDIR": str(folder), **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=350,
    )


@pytest.mark.slow
def test_each_flight_is_booked_and_invoiced_once_although_all_three_are_killed(tmp_path):
    done = demo(tmp_path, "--json", "--kills", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["ok"]
    assert report["relay_kills"] == 2
    assert report["published_again"] > 0
    for service in (report["orders"], report["billing"]):
        assert service["booked"] == report["truth"]
        assert service["equal"]
        assert service["crashes"] == 2
        assert service["duplicates"] > 0
        assert service["delivered"] > 2000
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_with_the_checkers_switched_off_it_fails_and_says_what_differs(tmp_path):
    done = demo(tmp_path, "--kills", "0", IDEMPOTENT_DISABLED="all")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED" in done.stdout
    assert "orders: 0 lost" in done.stdout
