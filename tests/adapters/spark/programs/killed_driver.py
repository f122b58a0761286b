"""A driver to be killed: `python -m tests.adapters.spark.programs.killed_driver JOB`.

It does one run for each death of its Job, each in a thread that halts at its point of death. Once all have halted, the
last run is killed in the middle of its claims, and the process with it: one SIGKILL ends runs at every step.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from idempotent.adapters.spark import StoreConfig
from idempotent.testing.crashpoints import CrashPlan
from tests.adapters.spark.support import sessions
from tests.adapters.spark.support.pipeline import KillsItsDriver, Place, do

CLAIMING = "in the middle of the claims"


@dataclass(frozen=True)
class Job:
    """The work of one driver.

    Attributes:
        store: the arguments of its StoreConfig.
        folder: of its Place.
        deaths: by consumer, where its first run dies, in the words of CrashPlan.
        lease_s: of the runs.
    """

    store: dict[str, Any]
    folder: str
    deaths: dict[str, str]
    lease_s: float

    @classmethod
    def of(cls, store: StoreConfig, place: Place, *, deaths: dict[str, str], lease_s: float) -> Job:
        known = {"url": store.url, "table": store.table, "prefix": store.prefix}
        return cls(known, str(place.folder), deaths, lease_s)

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.adapters.spark.programs.killed_driver", json.dumps(asdict(self))]


class Halt:
    """Puts points around functions, as `around` does, and stops the thread that reaches the planned one."""

    def __init__(self, plan: CrashPlan) -> None:
        self.reached = threading.Event()
        self._plan = plan
        self._passed: Counter[str] = Counter()

    def around(self, function: Callable[..., Any], step: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self._pass(f"before_{step}")
            answer = function(*args, **kwargs)
            self._pass(f"after_{step}")
            return answer

        return wrapped

    def _pass(self, point: str) -> None:
        self._passed[point] += 1
        if (point, self._passed[point]) == (self._plan.point, self._plan.nth):
            self.reached.set()
            threading.Event().wait()


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    work = functools.partial(do, day=0, lease_s=job.lease_s)
    spark = sessions.classic(**sessions.QUICK, **{"spark.sql.execution.arrow.maxRecordsPerBatch": "40"})
    places = StoreConfig(**job.store), Place(Path(job.folder))
    for consumer, at in job.deaths.items():
        if at != CLAIMING:
            halt = Halt(CrashPlan.parse(at))
            words = {"consumer": consumer, "step": halt.around}
            threading.Thread(target=work, args=(spark, *places), kwargs=words, daemon=True).start()
            halt.reached.wait()
    killer = KillsItsDriver(os.getpid())
    (consumer,) = (consumer for consumer, at in job.deaths.items() if at == CLAIMING)
    work(spark, *places, consumer=consumer, through=lambda frame: frame.mapInArrow(killer, frame.schema))


if __name__ == "__main__":
    main()
