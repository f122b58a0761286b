"""A process of many tasks or threads that claim and complete the same keys as other processes."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from typing import Any

from idempotent.claims import Verdict
from tests.checkers.batching.rounds import request


def checker_of(url: str, table: str) -> Any:
    from idempotent.checkers import RedisChecker, SqlChecker

    if url.startswith("redis"):
        return RedisChecker(url, prefix=f"{table}:")
    return SqlChecker(url, table=table)


def in_tasks(url: str, table: str, tasks: int, keys: int) -> None:
    """Deliver each key to one of the tasks until it is done; write the keys that were acquired to stdout."""
    checker = checker_of(url, table)
    names = [f"m{number}" for number in range(keys)]
    random.shuffle(names)
    left = iter(names)

    async def work() -> None:
        for name in left:
            while (decision := await checker.awaiting.claim(request(name))).verdict is not Verdict.DUPLICATE:
                if decision.claim is None:
                    assert decision.verdict is Verdict.IN_PROGRESS
                    await asyncio.sleep(0.01)
                    continue
                os.write(1, f"{name}\n".encode())
                await asyncio.sleep(random.uniform(0, 0.002))
                assert await checker.awaiting.complete(decision.claim)

    async def run() -> None:
        await asyncio.gather(*(work() for _ in range(tasks)))

    asyncio.run(run())
    checker.close()


def in_threads(url: str, table: str, threads: int, keys: int) -> None:
    """As `in_tasks`, in threads."""
    checker = checker_of(url, table)
    names = [f"m{number}" for number in range(keys)]
    random.shuffle(names)
    left = iter(names)
    pause = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for name in left:
                deliver(name)
        except BaseException as error:
            errors.append(error)
            raise

    def deliver(name: str) -> None:
        while (decision := checker.lone.claim(request(name))).verdict is not Verdict.DUPLICATE:
            if decision.claim is None:
                pause.wait(0.01)
                continue
            os.write(1, f"{name}\n".encode())
            assert checker.lone.complete(decision.claim)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    checker.close()
    assert not errors
