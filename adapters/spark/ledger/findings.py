"""What `idempotent doctor` says of the run ledger: runs that nobody goes on with, and whose keys others wait for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from idempotent.adapters.spark.ledger.runs import RunState
from idempotent.adapters.spark.ledger.store import RunStore
from idempotent.admin import Finding, Level

_WAITS_S: Final = 3600.0
_SHOWN: Final = 5


def run_findings(store: RunStore) -> Iterator[Finding]:
    """Report runs that no driver has had for an hour, the oldest first. Changes nothing.

    Raises:
        StoreError: the store failed or did not answer, or has no ledger.
    """
    waiting = store.waiting(_WAITS_S)
    for state, what, hint in (
        (
            RunState.OPEN,
            "OPEN, so the next run that meets its keys aborts it",
            "begin it again with this run_id; or leave it, if its input comes in another run",
        ),
        (
            RunState.PREPARED,
            "PREPARED, so it may have published, and other runs wait for its keys",
            "begin it again with this run_id; if that never succeeds: docs/spark.md, A publication that never succeeds",
        ),
    ):
        found = [each for each in waiting if each.state is state]
        if found:
            names = ", ".join(each.name for each in found[:_SHOWN])
            more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            yield Finding(
                Level.WARNING,
                f"{len(found)} of Spark's runs {'has' if len(found) == 1 else 'have'} had no driver for up to "
                f"{found[0].lapsed_s / 3600:,.1f} h ({what}): {names}{more}",
                hint,
            )
