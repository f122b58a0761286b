"""RunBeginning: begin a run, resume it where a crash left it, or wait until another driver has let go of it."""

from __future__ import annotations

import time
from typing import Final

from idempotent.adapters.spark.ledger.lifecycle import UNFINISHED, RunLifecycle
from idempotent.adapters.spark.ledger.runs import MICROSECONDS, RunChange, RunRef, RunRow, RunState, new_token
from idempotent.errors import ConfigurationError, RunConflictError, RunInputChangedError, StoreBusyError

_ROUNDS: Final = 20
_MAX_FINGERPRINT: Final = 64
_POLL_S: Final = 0.5


class RunBeginning(RunLifecycle):
    """Who has a run: one driver at a time, for as long as it renews its lease."""

    def begin(
        self,
        consumer: str,
        run_id: str,
        *,
        fingerprint: bytes | None = None,
        lease_s: float,
        wait_s: float = 0.0,
        takeover: bool = False,
    ) -> RunRow:
        """Begin a run, or resume it where a crash left it. One driver at a time has it.

        The newest generation is resumed if it is OPEN or PREPARED and its lease has ended: the lease is renewed, and
        its epoch grows by 1, which fences every earlier driver. A COMMITTED one is returned as it is. If the run is
        new, or ABORTED, the next generation is begun, OPEN, with epoch 1.

        Args:
            consumer: the consumer that claims the keys.
            run_id: names the unit of work.
            fingerprint: of the input, 1 to 64 bytes; None: not compared.
            lease_s: seconds during which other drivers and other runs cannot take it; at most a tenth of the retention.
            wait_s: seconds to wait for the end of another driver's lease.
            takeover: resume the run although another driver's lease has not ended.

        Returns:
            The row, with the epoch of this attempt; of a COMMITTED run, the epoch that was prepared.

        Raises:
            RunConflictError: another driver has the run, and did not end within `wait_s`.
            RunInputChangedError: the run was begun with another fingerprint.
            ConfigurationError: a fingerprint or a lease of an invalid length.
            StoreBusyError: other drivers begin and abort the run all the time.
        """
        lease_us = self._lease_us(lease_s)
        if fingerprint is not None and not 0 < len(fingerprint) <= _MAX_FINGERPRINT:
            raise ConfigurationError(
                f"a fingerprint has 1 to {_MAX_FINGERPRINT} bytes, not {len(fingerprint)}"
            )
        deadline, rounds = self._monotonic() + wait_s, 0
        while rounds < _ROUNDS:
            newest = self._newest(consumer, run_id)
            if newest is not None:
                _refuse_other_input(newest, fingerprint)
            if newest is not None and newest.state in UNFINISHED and not newest.lapsed and not takeover:
                self._wait_for_lease(newest, deadline)
                continue
            if newest is None or newest.state is RunState.ABORTED:
                generation = 1 if newest is None else newest.ref.generation + 1
                ref = RunRef(consumer, run_id, generation, new_token(), epoch=1)
                row = self._begin_next(ref, newest, fingerprint, lease_us)
            elif newest.state is RunState.COMMITTED:
                row = newest.at(newest.prepared)
            else:
                row = self._resume(newest, fingerprint, lease_us, takeover=takeover)
            if row is not None:
                return row
            rounds += 1
        raise StoreBusyError(
            f"run {run_id!r} of consumer {consumer!r} was begun or aborted by others in each of {_ROUNDS} rounds. "
            "Try again"
        )

    def _begin_next(
        self, ref: RunRef, newest: RunRow | None, fingerprint: bytes | None, lease_us: int
    ) -> RunRow | None:
        self._insert_run(ref, None if newest is None else newest.ref.token, fingerprint, lease_us)
        row = self._newest(ref.consumer, ref.run_id)
        # Epoch 1 is this driver's, even if another driver has resumed the run since.
        return row.at(1) if row is not None and row.ref.token == ref.token else None

    def _resume(
        self, row: RunRow, fingerprint: bytes | None, lease_us: int, *, takeover: bool
    ) -> RunRow | None:
        change = RunChange(
            UNFINISHED,
            lease_us=lease_us,
            epoch=row.ref.epoch,
            resumes=True,
            only_lapsed=not takeover,
            fingerprint=fingerprint,
        )
        if not self._change_run(row.ref.token, change):
            return None
        resumed = self._find(row.ref)
        # The epoch of this call, as above.
        return None if resumed is None else resumed.at(row.ref.epoch + 1)

    def _wait_for_lease(self, row: RunRow, deadline: float) -> None:
        rest_s, patience_s = (row.lease_until_us - row.now_us) / MICROSECONDS, deadline - self._monotonic()
        if patience_s <= 0:
            raise RunConflictError(
                f"{row.ref} is {row.state.name}, and another driver has it, whose lease ends in {rest_s:.1f} s "
                "unless it is renewed. Let that driver end, or begin the run with takeover=True, which fences it"
            )
        self._sleep(min(rest_s + 0.001, patience_s, _POLL_S))

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def _monotonic(self) -> float:
        return time.monotonic()


def _refuse_other_input(row: RunRow, fingerprint: bytes | None) -> None:
    if row.state is RunState.ABORTED or None in (fingerprint, row.fingerprint):
        return
    if fingerprint != row.fingerprint:
        raise RunInputChangedError(
            f"{row.ref} is {row.state.name} and was begun with other input. A run_id names one unit of work: "
            "give the new one another run_id"
        )
