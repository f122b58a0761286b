"""Refusals: the errors for a run whose state does not allow what it is asked to do."""

from __future__ import annotations

from idempotent.adapters.spark.ledger.runs import RunRef, RunState
from idempotent.errors import RunFencedError, RunInputChangedError, StoreReplacedError


def require_alive(ref: RunRef, state: RunState, where: str) -> None:
    """Return if the run is OPEN, PREPARED or COMMITTED.

    Args:
        ref: the run.
        state: its state.
        where: the store, without its password.

    Raises:
        RunFencedError: the run was aborted.
        StoreReplacedError: the store does not know the run.
    """
    if state is RunState.UNKNOWN:
        raise unknown_run(ref, where)
    if state is RunState.ABORTED:
        raise RunFencedError(f"{ref} was aborted: its lease ended, or its driver aborted it. Begin it again")


def require_open(ref: RunRef, state: RunState, where: str) -> None:
    """Return if the run is OPEN, as it must be to claim a key. Arguments as those of `require_alive`.

    Raises:
        RunFencedError, StoreReplacedError: as `require_alive`.
        RunInputChangedError: the run has made all its claims.
    """
    require_alive(ref, state, where)
    if state is not RunState.OPEN:
        raise unclaimed_key(ref, state)


def unknown_run(ref: RunRef, where: str) -> StoreReplacedError:
    """The error for a run that the store does not know."""
    return StoreReplacedError(
        f"{where} does not know {ref}: it is another store, was emptied, or its retention is over. Use the store in "
        "which the run was begun, or begin the run again"
    )


def unclaimed_key(ref: RunRef, state: RunState) -> RunInputChangedError:
    """The error for a key that a run meets only after it has made all its claims."""
    return RunInputChangedError(
        f"{ref} is {state.name}, has made all its claims, and now meets a key that it did not claim: its input "
        "changed, or no action went over all of it before PREPARED. Give the new input another run_id, or claim all "
        "of a run's input before publishing"
    )
