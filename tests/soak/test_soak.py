"""The soak run, for a moment; and that its verdict can be bad."""

import json
import re
import subprocess
import sys

import pytest
from rich.console import Console

from tests.soak.__main__ import report
from tests.soak.line import ROOT, Reading

MIB = 2**20


# It starts two brokers and a store, and works for eight seconds. The verdict of a run is tested below.
@pytest.mark.slow
def test_each_message_has_one_effect_and_what_was_read_is_there(tmp_path):
    command = [sys.executable, "-m", "tests.soak", "--seconds", "8", "--rate", "100", "--every", "1"]
    ended = subprocess.run(
        [*command, "--into", str(tmp_path)],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    counts = re.findall(r"([\d,]+) messages, ([\d,]+) effects of ([\d,]+) of them", ended.stdout)
    assert len(counts) == 2, ended.stdout + ended.stderr
    for sent, effects, messages in counts:
        assert sent == effects == messages != "0"
    lines = (tmp_path / "readings.jsonl").read_text().splitlines()
    readings = [Reading(**json.loads(line)) for line in lines]
    # At first they are only being started, and at the end some have ended.
    at_work = [one for one in readings if one.resident_bytes > 10 * MIB and one.descriptors > 3]
    assert len({reading.process for reading in readings}) == len({one.process for one in at_work}) == 4
    assert (tmp_path / "soak.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("grown_bytes", "opened", "effects", "is_right"),
    [(0, 0, 5, True), (MIB, 0, 5, False), (0, 1, 5, False), (0, 0, 6, False), (0, 0, 4, False)],
    ids=["flat", "memory", "descriptors", "repeated", "lost"],
)
def test_what_grows_or_is_lost_or_repeated_is_noticed(grown_bytes, opened, effects, is_right):
    readings = [
        Reading(at_s, "worker", at_s, 0, 50 * MIB + at_s * grown_bytes, 20 + at_s * opened)
        for at_s in range(20)
    ]
    counts = {"line": (5, effects, min(effects, 5))}
    assert report(Console(quiet=True), readings, counts) is is_right
