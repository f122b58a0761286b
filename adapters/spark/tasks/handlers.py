"""Modes effect and replay on an executor: each key's handler to its end once, as long as nobody dies in between."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, TypeVar

from idempotent.adapters.spark.ledger.claims import ATTEMPT_BYTES, Hold
from idempotent.adapters.spark.tasks.handle import RunHandle
from idempotent.adapters.spark.tasks.ledgers import check_store, ledger_for
from idempotent.adapters.spark.tasks.renewal import Renewal
from idempotent.errors import RunConflictError, StoreError

R = TypeVar("R")
_LONGEST_LOOK_S: Final = 1.0


class Handlers:
    """Runs handlers for the keys of one partition.

    A key that another attempt holds is waited for: it is done when that attempt finishes it, and this one's when its
    lease ends. Skipping it would lose it if that attempt dies.

    Args:
        handle: the run.
    """

    def __init__(self, handle: RunHandle) -> None:
        """Look that the store is the right one."""
        self._handle = handle
        self._ledger = ledger_for(handle.store)
        # Nothing of Spark's: its stage, partition and attempt numbers come again in other jobs.
        self._attempt = secrets.token_bytes(ATTEMPT_BYTES)
        check_store(self._ledger, handle)

    def run(self, rows: Mapping[bytes, R], handler: Callable[[R], bytes | None]) -> dict[bytes, bytes | None]:
        """The results of all keys: the handler's, or what an earlier attempt stored.

        Args:
            rows: by key hash, one chunk of them.
            handler: returns what is to be stored, or None.

        Raises:
            RunConflictError: a key was held for longer than the run waits.
            RunError, StoreError: see KeyHolding.acquire.
            Exception: the handler's own; its key, and those that were not begun, are free for the retry.
        """
        results: dict[bytes, bytes | None] = {}
        pending, deadline = list(rows), time.monotonic() + self._handle.wait_s
        while pending:
            answers = self._ledger.acquire(
                self._handle.ref, self._handle.epoch, self._attempt, pending, self._handle.lease_s
            )
            by_hash = dict(zip(pending, answers, strict=True))
            results.update({each: held.result for each, held in by_hash.items() if held.hold is Hold.DONE})
            mine = [each for each, held in by_hash.items() if held.hold is Hold.MINE]
            if mine:
                results.update(self._handle_mine({each: rows[each] for each in mine}, handler))
            pending = [each for each in rows if each not in results]
            held_s = [held.lease_rest_s for held in by_hash.values() if held.hold is Hold.HELD]
            if pending and held_s:
                self._wait(min(held_s), deadline, len(pending))
        return results

    def _handle_mine(
        self, rows: Mapping[bytes, R], handler: Callable[[R], bytes | None]
    ) -> dict[bytes, bytes | None]:
        """What was finished; others may have taken over the rest."""
        results: dict[bytes, bytes | None] = {}
        with Renewal(self._renew, set(rows), self._handle.lease_s) as renewal:
            try:
                for key_hash, row in rows.items():
                    # Not an effect on a key that somebody else may be at work on by now.
                    if not renewal.holds(key_hash):
                        continue
                    result = handler(row)
                    if self._ledger.finish(self._handle.ref, self._attempt, [(key_hash, result)]):
                        results[key_hash] = result
                    renewal.forget(key_hash)
            except BaseException:
                renewal.stop()
                # Else their leases end by themselves; what the handler raised is what must be known.
                with suppress(StoreError):
                    self._ledger.give_up(self._attempt, renewal.outstanding)
                raise
        return results

    def _renew(self, hashes: set[bytes]) -> set[bytes]:
        return self._ledger.renew_claims(self._attempt, hashes, self._handle.lease_s)

    def _wait(self, lease_rest_s: float, deadline: float, count: int) -> None:
        if time.monotonic() > deadline:
            raise RunConflictError(
                f"{count} keys of {self._handle.ref} are held by other attempts for more than {self._handle.wait_s:g} s"
            )
        time.sleep(min(max(lease_rest_s, 0.05), _LONGEST_LOOK_S))
