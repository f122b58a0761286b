"""Garbage collection in a process of its own, while a consumer claims one key after the other."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sqlalchemy import create_engine

from idempotent.checkers import SqlChecker
from tests.bench.growth.claiming import fresh
from tests.bench.growth.results import Collection, Latency, Layout
from tests.bench.growth.tables import TABLES, Tables
from tests.support.services import PrivateServer

ROOT: Final = Path(__file__).parent.parent.parent.parent
_TABLE: Final = TABLES[Layout.BY_HASH]


def collection(
    name: str,
    server: PrivateServer,
    tables: Tables,
    *,
    expired: int,
    seconds: float,
    on_step: Callable[[str], object],
) -> Collection:
    """The consumer by itself for some seconds, then beside the deletion of so many expired keys."""
    on_step(f"{name}: {expired:,} expired keys loaded")
    tables.add_expired(expired)
    checker = SqlChecker(create_engine(server.url), table=_TABLE)
    on_step(f"{name}: a consumer by itself")
    until = time.perf_counter() + seconds
    without = list(fresh(checker, 1, lambda: time.perf_counter() < until))
    on_step(f"{name}: the same, and {expired:,} keys are deleted")
    words = [sys.executable, "-m", "tests.bench.growth.collecting_child", server.url, _TABLE]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it is connected
        during = list(fresh(checker, 1, lambda: process.poll() is None))
        answer = json.loads(process.stdout.read())
    checker.close()
    tables.forget_fresh()
    return Collection(
        name,
        tables.stored + expired,
        answer["deleted"],
        round(answer["deleted"] / answer["seconds"], 1),
        Latency.of(without),
        Latency.of(during),
    )
