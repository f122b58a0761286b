"""abort_run: end a run that no driver has, by its name. It begins none, as `IdempotentRun.begin(...)` would."""

from __future__ import annotations

from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.adapters.spark.ledger.ledger import RunLedger
from idempotent.adapters.spark.ledger.refusals import (
    another_driver,
    held_by_transaction,
    no_such_run,
    wrong_state,
)
from idempotent.adapters.spark.ledger.runs import RunChange, RunRow, RunState
from idempotent.adapters.spark.ledger.urls import open_ledger
from idempotent.errors import StoreBusyError
from idempotent.validation import flag


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
        return abort_as_seen(ledger, row, unpublished=flag(unpublished, "unpublished"))


def existing(ledger: RunLedger, consumer: str, run_id: str) -> RunRow:
    """The newest generation of a run. Raises UnknownRunError: the ledger has no run of this name."""
    if (row := ledger.read(consumer, run_id)) is None:
        raise no_such_run(consumer, run_id, ledger.where)
    return row


def abort_as_seen(ledger: RunLedger, row: RunRow, *, unpublished: bool) -> bool:
    """Abort a run iff it is as it was read, and no driver has it. Returns and raises as `abort_run`."""
    if row.state is RunState.COMMITTED or (row.state is RunState.PREPARED and not unpublished):
        raise wrong_state(row.ref, row.state)
    if row.state is not RunState.ABORTED:
        if not row.lapsed:
            raise another_driver(row)
        change = RunChange(frozenset({row.state}), RunState.ABORTED, epoch=row.ref.epoch, only_lapsed=True)
        try:
            aborted = ledger.store.change_run(row.ref.token, change)
        except StoreBusyError as busy:
            raise held_by_transaction(row) from busy
        if not aborted:
            raise StoreBusyError(
                f"another driver or person changed {row.ref} at the same time. Look at it again"
            )
    return row.state is not RunState.ABORTED
