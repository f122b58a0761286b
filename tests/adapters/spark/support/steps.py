"""Runs with points before and after their steps in the ledger, where a driver can be killed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from idempotent.adapters.spark import IdempotentRun
from idempotent.adapters.spark.ledger.ledger import RunLedger

Step = Callable[[Any, str], Any]
"""Wraps the function of a step, whose name it gets too."""


def stepped(step: Step) -> type[IdempotentRun]:
    """Runs whose ledger prepares and commits through `step`."""

    class Ledger(RunLedger):
        def prepare(self, *args: Any, **kwargs: Any) -> None:
            step(super().prepare, "prepare")(*args, **kwargs)

        def commit(self, *args: Any, **kwargs: Any) -> None:
            step(super().commit, "commit")(*args, **kwargs)

    class Run(IdempotentRun):
        def __init__(self, ledger: RunLedger, *others: Any) -> None:
            super().__init__(Ledger(ledger.store), *others)

    return Run
