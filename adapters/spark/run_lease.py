"""RunLease: the driver's thread that keeps its run's lease from ending."""

from __future__ import annotations

import threading
from typing import Final

from idempotent.adapters.spark.ledger.ledger import RunLedger
from idempotent.adapters.spark.ledger.runs import RunRef
from idempotent.errors import IdempotentError, RunFencedError
from idempotent.logs import EventLog

log = EventLog(__name__)
_TIMES_A_LEASE: Final = 3


class RunLease:
    """Renews a run's lease three times a lease until it is stopped.

    Args:
        ledger: the run's ledger, which is safe for threads.
        ref: the run.
        lease_s: seconds of one lease.
    """

    def __init__(self, ledger: RunLedger, ref: RunRef, lease_s: float) -> None:
        """Start the thread."""
        self._ledger = ledger
        self._ref = ref
        self._lease_s = lease_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="idempotent-run-lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop renewing, and wait for the thread."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._lease_s / _TIMES_A_LEASE):
            try:
                self._ledger.renew(self._ref, self._lease_s)
            except IdempotentError as error:
                # A driver that was fenced meanwhile learns it at its next step.
                log.warning("run_not_renewed", extra={"run": str(self._ref), "error": str(error)})
                if isinstance(error, RunFencedError):
                    return
