"""A process whose worker ends by a signal leaves no task, connection or loop for Python to warn of."""

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, gc, os, signal, sys, threading
from idempotent import Message, Registry, Worker
from idempotent.adapters import MemoryAdapter, MemoryBroker
from idempotent.admin import KeyFilter
from idempotent.checkers import SqlChecker
from idempotent.migrations import upgrade

how, url, timeout_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
upgrade(url)
registry = Registry()
checker = registry.checker("db", SqlChecker(url))

async def background():
    await asyncio.sleep(100)

@registry.consumer("orders", checker="db")
async def handle(message):
    tasks.add(asyncio.create_task(background()))
    tasks.add(asyncio.ensure_future(asyncio.to_thread(int)))
    begun.append(message.id)
    if len(begun) == 20:
        signal.raise_signal(signal.SIGTERM) if how == "run" else os.kill(os.getpid(), signal.SIGTERM)
        all_begun.set()
    # On a busy machine the first would end before the last begins, and leave its place to another.
    await all_begun.wait()
    await asyncio.sleep(100 if timeout_s < 1 else 0.3)

begun, tasks, all_begun = [], set(), asyncio.Event()
broker = MemoryBroker()
for number in range(50):
    broker.publish(Message("orders", id=str(number)))
worker = Worker(registry, MemoryAdapter(broker), concurrency=20, drain_timeout_s=timeout_s)

async def serve():
    task = asyncio.create_task(worker.serve())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

worker.run() if how == "run" else asyncio.run(serve())
open_keys = [key for key in checker.admin().list(KeyFilter()) if key.status.in_progress]
registry.close()
tasks.clear()
gc.collect()
print("begun", len(begun), "backlog", broker.backlog("orders"), "open", len(open_keys))
print(sorted(thread.name for thread in threading.enumerate()))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("timeout_s", "backlog"), [("0.2", 50), ("20", 30)])
@pytest.mark.parametrize("how", ["run", "serve"])
def test_a_process_that_ends_by_a_signal_leaves_nothing_for_python_to_warn_of(
    tmp_path, how: str, timeout_s: str, backlog: int
) -> None:
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM]
    arguments = [how, f"sqlite:///{tmp_path}/keys.db", timeout_s]
    ended = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"begun 20 backlog {backlog} open 0\n['MainThread']\n"
    said = [line for line in ended.stderr.splitlines() if "Executing <" not in line]  # a busy machine
    assert [line.split()[0] for line in said] == ([] if timeout_s == "20" else ["drain_timed_out"])
