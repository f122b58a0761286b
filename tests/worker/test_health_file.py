"""The file that liveness and readiness probes look at."""

import os
import threading
import time

import pytest

from idempotent import Registry, Worker
from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.errors import ConfigurationError
from idempotent.worker.health_file import HealthFile
from tests.support.logs import logged


class Adapter(MemoryAdapter):
    there = True

    @property
    def connected(self):
        return self.there


def test_a_worker_writes_it_while_it_lives(tmp_path):
    path = tmp_path / "health"
    registry = Registry()
    registry.consumer("orders", checker=MemoryChecker())(lambda message: None)
    adapter = Adapter(MemoryBroker())
    worker = Worker(registry, adapter, health_file=path)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        assert becomes(path, "ready\n")
        os.utime(path, (0, 0))
        assert wait(lambda: path.stat().st_mtime > 0), "it is written again while nothing happens"
        adapter.there = False
        assert becomes(path, "connecting\n")
    finally:
        worker.stop()
        thread.join()
    assert not path.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_gone_does_not_stop_the_messages(tmp_path, caplog):
    registry = Registry()
    registry.consumer("orders", checker=MemoryChecker())(lambda message: None)
    adapter = MemoryAdapter(MemoryBroker(), until_empty=True)
    folder = tmp_path / "gone"
    folder.mkdir()
    worker = Worker(registry, adapter, health_file=folder / "health")
    folder.rmdir()
    worker.run()
    assert "health_file_failed" in caplog.text


def test_a_file_that_cannot_be_written_is_told_once_a_minute(tmp_path, caplog):
    path = tmp_path / "gone" / "health"
    health = HealthFile(path)
    for word in ("ready\n", "store\n", "ready\n"):  # another word is written at once
        health.beat(word)
    told = logged(caplog, "health_file_failed")
    assert [record.path for record in told] == [str(path)]


def test_a_folder_that_is_not_there_is_an_error_at_the_start(tmp_path):
    with pytest.raises(ConfigurationError, match=r"no folder '.*absent'; make it"):
        Worker(Registry(), MemoryAdapter(MemoryBroker()), health_file=tmp_path / "absent" / "health")


def test_removing_what_was_never_written_is_no_error(tmp_path):
    HealthFile(tmp_path / "health").remove()
    assert list(tmp_path.iterdir()) == []


def becomes(path, word):
    return wait(lambda: path.exists() and path.read_text() == word)


def wait(look):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if look():
            return True
        time.sleep(0.05)
    return False
