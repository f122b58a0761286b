"""Refusals: the errors for a run that may not do what it is asked to do, each with the way out."""

from __future__ import annotations

from shlex import quote
from typing import Final

from idempotent.adapters.spark.ledger.runs import RunRef, RunRow, RunState
from idempotent.errors import (
    ClaimsExpiredError,
    RunConflictError,
    RunFencedError,
    RunInputChangedError,
    StoreBusyError,
    StoreReplacedError,
    UnknownRunError,
    UnpublishedClaimsError,
)

_ADVICE: Final = {
    RunState.OPEN: ": prepare it first",
    RunState.PREPARED: (
        ": it may have published. Begin it again and publish, or, if you know that nothing of it is published and no "
        "driver is publishing, abort it with --unpublished, in Python abort(unpublished=True)"
    ),
    RunState.COMMITTED: ", which is final",
    RunState.ABORTED: ": its lease ended, or its driver aborted it. Begin it again, for the next generation",
}


def require_alive(ref: RunRef, row: RunRow, where: str, *, again: bool = False) -> None:
    """Return if this attempt may evaluate its rows.

    Args:
        ref: the run and the attempt.
        row: of the run.
        where: the store, without its password.
        again: the newest attempt may go over its rows again although an earlier one was PREPARED, as effects may, whose
            claims are done for good.

    Raises:
        RunFencedError: the run was aborted, another driver has taken it over, or an earlier attempt was PREPARED.
        StoreReplacedError: the store does not know the run.
    """
    if row.state is RunState.UNKNOWN:
        raise unknown_run(ref, where)
    if row.state is RunState.ABORTED:
        raise wrong_state(ref, row.state)
    if not row.admits(ref.epoch) and not (again and row.ref.epoch == ref.epoch):
        raise fenced(ref, row)


def fenced(ref: RunRef, row: RunRow) -> RunFencedError:
    """The error for an attempt that a newer one has replaced, or that came after the one that was PREPARED."""
    if row.ref.epoch > ref.epoch:
        return RunFencedError(
            f"{ref} was taken over by another driver, and is {row.state.name} at epoch {row.ref.epoch}: "
            f"this driver must end. If it should go on, begin the run again. Type: {command('show', ref)}"
        )
    return RunFencedError(
        f"{ref} is {row.state.name}: the attempt of epoch {row.prepared} has made all claims, and its rows "
        "are not evaluated again. Publish what `stage` returns, which is what that attempt staged. If it staged "
        f"nothing, look whether it has published. Then type: {command('abort', ref, ' --unpublished')}"
    )


def require_open(ref: RunRef, row: RunRow, where: str) -> None:
    """Return if the run is OPEN, as it must be to claim a key. Arguments as those of `require_alive`.

    Raises:
        RunFencedError, StoreReplacedError: as `require_alive`.
        RunInputChangedError: the run has made all its claims.
    """
    require_alive(ref, row, where, again=True)
    if row.state is not RunState.OPEN:
        raise unclaimed_key(ref, row.state)


def unknown_run(ref: RunRef, where: str) -> StoreReplacedError:
    """The error for a run that the store does not know."""
    return StoreReplacedError(
        f"{where} does not know {ref}: it is another store, was emptied, or its retention is over. Use the store in "
        "which the run was begun, or begin the run again"
    )


def no_such_run(consumer: str, run_id: str, where: str) -> UnknownRunError:
    """The error for a run that was never begun under this name, or is forgotten."""
    return UnknownRunError(
        f"{where} has no run {run_id!r} of consumer {consumer!r}: the name is another one, or its retention is over. "
        "Type: idempotent runs list"
    )


def unclaimed_key(ref: RunRef, state: RunState) -> RunInputChangedError:
    """The error for a key that a run meets only after it has made all its claims."""
    return RunInputChangedError(
        f"{ref} is {state.name}, has made all its claims, and now meets a key that it did not claim: its input "
        "changed, or no action went over all of it before PREPARED. Give the new input another run_id, or claim all "
        "of a run's input before publishing"
    )


def require_same_input(row: RunRow, fingerprint: bytes | None) -> None:
    """Return if the run may be begun again with this fingerprint. None is not compared, nor an ABORTED run.

    Raises:
        RunInputChangedError: the run was begun with another one.
    """
    if row.state is RunState.ABORTED or None in (fingerprint, row.fingerprint):
        return
    if fingerprint != row.fingerprint:
        raise RunInputChangedError(
            f"{row.ref} is {row.state.name} and was begun with other input. A run_id names one unit of work: "
            "give the new one another run_id"
        )


def command(what: str, ref: RunRef, options: str = "") -> str:
    """What to type about a run. The URL of the store is for the reader to add: it may have a password."""
    return f"idempotent runs {what} {quote(ref.run_id)} --consumer {quote(ref.consumer)}{options}"


def another_driver(row: RunRow) -> RunConflictError:
    """The error for a run that another driver has."""
    return RunConflictError(
        f"{row.ref} is {row.state.name}, and another driver has it: {row.holder}. Let that driver end, or begin the "
        "run in its program with takeover=True, which fences it. If you have seen that its process has ended, end its "
        f"lease. Type: {command('end-lease', row.ref)}"
    )


def held_by_transaction(row: RunRow, busy: StoreBusyError) -> RunConflictError:
    """The error for a run whose row an open transaction has locked, such as that of a handler with `transactional`."""
    return RunConflictError(
        f"{row.ref} is {row.state.name}, and cannot be changed ({busy}). If a transaction of one of its handlers has "
        "not ended, its process works on, or is paused: let it go on, or end it or its session in the database. Its "
        f"driver: {row.holder}. Type: {command('show', row.ref)}"
    )


def wrong_state(ref: RunRef, state: RunState) -> RunFencedError:
    """The error for a step that the run's state does not allow."""
    typed = f". Type: {command('abort', ref, ' --unpublished')}" if state is RunState.PREPARED else ""
    return RunFencedError(f"{ref} is {state.name}" + _ADVICE.get(state, "") + typed)


def unpublished(ref: RunRef, *, keys: int, rows: int) -> UnpublishedClaimsError:
    """The error for a run that has claimed another number of keys than it publishes rows."""
    return UnpublishedClaimsError(
        f"{ref} has claimed {_counted(keys, 'key')}, and {_counted(rows, 'row')} would be published. Publish all rows "
        "that `dedup` returns, one for each key, or say what happens to the other keys: see `stage`. Type: "
        f"{command('show', ref)}"
    )


def expired(ref: RunRef, state: RunState, reason: str) -> ClaimsExpiredError:
    """The error for a run of which the store may have forgotten claims."""
    way_out = "abort it and begin it again"
    if state is RunState.PREPARED:
        way_out = (
            "if its output is published, call run.ledger.commit(run.handle.ref, accept_loss=True), which lets other "
            f"runs publish those keys again; else type: {command('abort', ref, ' --unpublished')}"
        )
    return ClaimsExpiredError(
        f"the store may have forgotten claims of {ref}: {reason}. It stays {state.name}; {way_out}"
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
