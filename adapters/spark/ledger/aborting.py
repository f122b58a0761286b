"""abort_run: end a run that no driver has, or the lease of one, by name; none begins, as in `IdempotentRun.begin`."""

from __future__ import annotations

from typing import Any

from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.adapters.spark.ledger.ledger import ENDED_US, LOCK_S, RunLedger
from idempotent.adapters.spark.ledger.refusals import (
    another_driver,
    held_by_transaction,
    no_such_run,
    wrong_state,
)
from idempotent.adapters.spark.ledger.runs import RunChange, RunRow, RunState, consumer_shown, this_driver
from idempotent.adapters.spark.ledger.urls import open_ledger
from idempotent.errors import RunConflictError, RunFencedError, StoreBusyError
from idempotent.keys import hash_in
from idempotent.logs import EventLog
from idempotent.validation import flag

log = EventLog(__name__)


def abort_run(store: StoreConfig, *, consumer: str, run_id: str, unpublished: bool = False) -> bool:
    """Abort a run that no driver has, as `idempotent runs abort`: by its name, and without beginning it.

    Args:
        store: where the ledger is.
        consumer: of the run.
        run_id: of the run.
        unpublished: abort a PREPARED run too: see `IdempotentRun.abort` for what has to be checked before.

    Returns:
        Whether it was aborted now; False: it had been before.

    Raises:
        UnknownRunError: there is no such run.
        RunConflictError: a driver has it, or was killed and its lease has not ended; or a transaction of one of its
            handlers has not ended.
        RunFencedError: the run is COMMITTED, or PREPARED without `unpublished`.
        StoreError: the store failed, or did not answer.
    """
    with open_ledger(store) as ledger:
        row = existing(ledger, consumer, run_id)
        by = f"abort_run in {this_driver()}"
        return abort_as_seen(ledger, row, unpublished=flag(unpublished, "unpublished"), by=by)


def existing(ledger: RunLedger, consumer: str, run_id: str) -> RunRow:
    """The newest generation of a run. A long run_id may be as it is shown, cut and with a hash at its end.

    Raises:
        UnknownRunError: the ledger has no run of this name.
    """
    if (row := ledger.store.newest(consumer, run_id)) is not None:
        return row
    if (run_hash := hash_in(run_id)) and (row := ledger.store.newest(consumer, run_id, run_hash)) is not None:
        found = ledger.row(row.ref.token).ref
        if (found.consumer, found.run_id) == (consumer_shown(consumer), run_id):
            return row
    raise no_such_run(consumer, run_id, ledger.store.where)


def abort_as_seen(ledger: RunLedger, row: RunRow, *, unpublished: bool, by: str) -> bool:
    """Abort a run iff it is as it was read, and no driver has it. Returns and raises as `abort_run`.

    Args:
        ledger: of the run.
        row: the run as it was read.
        unpublished: as for `abort_run`.
        by: who does it, for the log.
    """
    if row.state is RunState.ABORTED:
        return False
    if row.state is RunState.COMMITTED:
        raise wrong_state(row.ref, row.state)
    # Before the state: who is told to check what was published must not be refused afterwards, for its driver lives.
    if not row.lapsed:
        raise another_driver(row)
    if row.state is RunState.PREPARED and not unpublished:
        raise wrong_state(row.ref, row.state)
    _change(ledger, row, RunState.ABORTED, only_lapsed=True)
    log.warning("run_aborted", extra={"run": str(row.ref), "by": by})
    return True


def end_lease_as_seen(ledger: RunLedger, row: RunRow) -> bool:
    """End the lease of a run iff it is as it was read, so that nobody waits for a driver that is gone.

    A driver that lives renews it, within a third of `lease_s`, and goes on if nobody has taken the run meanwhile.

    Returns:
        Whether it was ended now; False: it had ended before.

    Raises:
        RunFencedError: the run is COMMITTED or ABORTED.
        RunConflictError: its driver has renewed the lease since, or a transaction of one of its handlers has not ended.
        StoreError: the run has changed, or the store failed or did not answer.
    """
    if row.state.is_final:
        raise RunFencedError(f"{row.ref} is {row.state.name}, which is final, and has no lease")
    if row.lapsed:
        return False
    now = ledger.store.find(row.ref)
    if now is not None and now.ref.epoch == row.ref.epoch and now.lease_until_us > row.lease_until_us:
        raise RunConflictError(
            f"{row.ref}: its driver lives, and has renewed its lease meanwhile: {now.holder}"
        )
    _change(ledger, row, lease_us=ENDED_US)
    return True


def _change(ledger: RunLedger, row: RunRow, to: RunState | None = None, **options: Any) -> None:
    """Change a run iff it is as it was read; `options` are those of `RunChange`.

    Raises:
        RunConflictError: a transaction of one of its handlers has not ended.
        StoreBusyError: it has changed.
    """
    change = RunChange(frozenset({row.state}), to, epoch=row.ref.epoch, lock_s=LOCK_S, **options)
    try:
        changed = ledger.store.change_run(row.ref.token, change)
    except StoreBusyError as busy:
        raise held_by_transaction(row, busy) from busy
    if not changed:
        raise StoreBusyError(f"another driver or person changed {row.ref} at the same time. Look at it again")
