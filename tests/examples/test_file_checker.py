import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from idempotent import Message, Outcome, Registry
from idempotent.claims import ClaimRequest, KeyStatus
from idempotent.errors import StoreUnavailableError
from idempotent.keys import Key
from idempotent.testing import CheckerContract

EXAMPLE = Path(__file__).parents[2] / "examples" / "file_checker.py"

PROCESS = """
import os, sys, time
from file_checker import FileChecker
from idempotent import Message, Outcome, Registry
from idempotent.testing import crash_points

folder, lease_s, keys = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
checker = crash_points(FileChecker(folder + "/keys", lease_s=lease_s))
registry = Registry()

@registry.consumer("orders", checker=checker)
def book(message):
    effects = os.open(folder + "/effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(effects, f"{message.id}\\n".encode())
    os.close(effects)

print("ready", flush=True)
sys.stdin.readline()
left, deadline = [str(number) for number in range(keys)], time.monotonic() + 45
while left and time.monotonic() < deadline:
    settled = (Outcome.PROCESSED, Outcome.DUPLICATE)
    left = [name for name in left if book(Message("orders", id=name)).outcome not in settled]
registry.close()
sys.exit(len(left))
"""


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("file_checker", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def start(tmp_path):
    (tmp_path / "keys").mkdir()

    def start(*, lease_s, keys, crash_at=None):
        environ = {**os.environ, "PYTHONPATH": str(EXAMPLE.parent)}
        if crash_at:
            environ["IDEMPOTENT_CRASH_AT"] = crash_at
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", PROCESS, str(tmp_path), str(lease_s), str(keys)],
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(process.kill)
        return process

    with ExitStack() as stack:
        yield start


class TestFileChecker(CheckerContract):
    @pytest.fixture(autouse=True)
    def _folder(self, example, tmp_path, monkeypatch):
        self.example, self.folder = example, tmp_path
        # The page cache is all these tests see of a disk, and a slow disk would let their short leases end.
        monkeypatch.setattr(os, "fsync", lambda _: None)

    def make_checker(self, *, lease_s, retention_s):
        return self.example.FileChecker(self.folder, lease_s=lease_s, retention_s=retention_s)

    def age(self, checker, seconds):
        for path in self.folder.glob("*.json"):
            with self.example.opened(path) as record:
                record.expiry -= seconds
                record.failed_at -= seconds
                if record.lease_end is not None:
                    record.lease_end -= seconds


def test_a_folder_that_is_missing_is_no_empty_store(example, tmp_path):
    checker = example.FileChecker(tmp_path / "not mounted")
    with pytest.raises(StoreUnavailableError):
        checker.protocol.claim(ClaimRequest(Key(b"k" * 20, "k")))
    with pytest.raises(StoreUnavailableError):
        checker.garbage_collect()
    checker.close()


def test_processes_that_race_make_each_effect_once(start, tmp_path):
    racers = [start(lease_s=30.0, keys=200) for _ in range(4)]
    assert [racer.stdout.readline() for racer in racers] == ["ready\n"] * 4
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    unsettled = [racer.wait(timeout=60) for racer in racers]
    effects = Counter((tmp_path / "effects").read_text().split())
    assert effects == {str(number): 1 for number in range(200)}
    assert unsettled == [0] * 4


@pytest.mark.slow
def test_the_key_of_a_killed_process_is_held_until_its_lease_ends(start, tmp_path, example):
    killed = start(lease_s=3.0, keys=1, crash_at="before_complete")
    assert killed.stdout.readline() == "ready\n"
    killed.stdin.write("go\n")
    killed.stdin.flush()
    assert killed.wait(timeout=60) == -signal.SIGKILL

    assert (tmp_path / "effects").read_text() == "0\n"
    taken_over = []
    registry = Registry()

    @registry.consumer(
        "orders", checker=example.FileChecker(tmp_path / "keys", lease_s=3.0), on_expired_lease="retry"
    )
    def book(message):
        taken_over.append(message.id)

    (file,) = (tmp_path / "keys").glob("*.json")
    left_behind = example.Record.load(file)
    assert left_behind.status is KeyStatus.IN_PROGRESS
    assert book(Message("orders", id="0")).outcome is Outcome.IN_PROGRESS
    assert example.Record.load(file) == left_behind

    time.sleep(max(0.0, left_behind.lease_end - time.time()))
    assert book(Message("orders", id="0")).outcome is Outcome.PROCESSED
    assert taken_over == ["0"]
    assert example.Record.load(file).fence == left_behind.fence + 1
    assert book(Message("orders", id="0")).outcome is Outcome.DUPLICATE
    registry.close()
