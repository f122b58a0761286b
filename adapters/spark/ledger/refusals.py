"""Refusals: the errors for a run whose state does not allow what it is asked to do."""

from __future__ import annotations

from idempotent.adapters.spark.ledger.runs import RunRef, RunState, Standing
from idempotent.errors import RunFencedError, RunInputChangedError, StoreReplacedError


def require_alive(ref: RunRef, standing: Standing, where: str) -> None:
    """Return if this attempt may evaluate its rows.

    Args:
        ref: the run and the attempt.
        standing: of the run.
        where: the store, without its password.

    Raises:
        RunFencedError: the run was aborted, another driver has taken it over, or an earlier attempt was PREPARED.
        StoreReplacedError: the store does not know the run.
    """
    if standing.state is RunState.UNKNOWN:
        raise unknown_run(ref, where)
    if standing.state is RunState.ABORTED:
        raise RunFencedError(f"{ref} was aborted: its lease ended, or its driver aborted it. Begin it again")
    if not standing.admits(ref.epoch):
        raise fenced(ref, standing)


def fenced(ref: RunRef, standing: Standing) -> RunFencedError:
    """The error for an attempt that a newer one has replaced, or that came after the one that was PREPARED."""
    if standing.epoch > ref.epoch:
        return RunFencedError(
            f"{ref} was taken over by another driver, and is {standing.state.name} at epoch {standing.epoch}: "
            "this driver must end. If it should go on, begin the run again"
        )
    return RunFencedError(
        f"{ref} is {standing.state.name}: the attempt of epoch {standing.prepared} has made all claims, and its rows "
        "are not evaluated again. Publish what `stage` returns, which is what that attempt staged"
    )


def require_open(ref: RunRef, standing: Standing, where: str) -> None:
    """Return if the run is OPEN, as it must be to claim a key. Arguments as those of `require_alive`.

    Raises:
        RunFencedError, StoreReplacedError: as `require_alive`.
        RunInputChangedError: the run has made all its claims.
    """
    require_alive(ref, standing, where)
    if standing.state is not RunState.OPEN:
        raise unclaimed_key(ref, standing.state)


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
