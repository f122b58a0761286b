"""Patience: how long a driver or a task waits, all tries of a task together, and what it says in the log meanwhile."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Iterable
from typing import Final

from idempotent.adapters.spark.ledger.claims import ATTEMPT_BYTES, HASH_BYTES, MAX_ROWS, Holder
from idempotent.adapters.spark.ledger.runs import MICROSECONDS, RunRef, microseconds
from idempotent.adapters.spark.ledger.store import RunStore
from idempotent.logs import EventLog

log = EventLog(__name__)

_SAY_EVERY_S: Final = 60.0


class Patience:
    """The waits of one call, `wait_s` in all. The log says who is waited for, at once or later, then each minute."""

    def __init__(
        self, wait_s: float, *, sleep: Callable[[float], object], monotonic: Callable[[], float]
    ) -> None:
        self.wait_s: Final = wait_s
        self._sleep = sleep
        self._monotonic = monotonic
        self._until = math.inf
        self._say_at = -math.inf
        self._first_at: float | None = None
        self._has_said = False
        self._met: set[bytes] = set()

    def share(self, store: RunStore, ref: RunRef, holders: Iterable[bytes]) -> None:
        """Count from when a task of this attempt began to wait for these holders, in an earlier try perhaps.

        A task that is tried again is another process, so the ledger keeps the end of that wait: as the lease of a
        pending claim of a key that no row has. The first task to insert it decides. Each holder has a name of its own.
        """
        new = sorted(set(holders) - self._met)[:MAX_ROWS]
        if not new or not self.wait_s:
            return
        self._met.update(new)
        head = f"wait {ref.token} {ref.epoch} ".encode()
        hashes = sorted(hashlib.blake2b(head + each, digest_size=HASH_BYTES).digest() for each in new)
        attempt = secrets.token_bytes(ATTEMPT_BYTES)
        waiting = Holder(ref.token, ref.epoch, attempt, microseconds(self.wait_s))
        rows = store.insert_pending(waiting, hashes).values()
        now = self._monotonic()
        ends = (now + (row.lease_until_us - row.now_us) / MICROSECONDS for row in rows)
        self._until = min(self._until, *ends, math.inf)

    def wait(
        self, ref: RunRef, reason: Callable[[], object], at_most_s: float, *, quiet_s: float = 0.0
    ) -> bool:
        """Wait a little; False, at once: the time is over.

        Args:
            ref: the run that waits.
            reason: tells for the log who is waited for.
            at_most_s: seconds to wait.
            quiet_s: seconds from the first wait for which the log says nothing.
        """
        now = self._monotonic()
        self._first_at = now if self._first_at is None else self._first_at
        self._until = min(self._until, now + self.wait_s)
        if now >= self._until:
            return False
        if now >= max(self._say_at, self._first_at + quiet_s):
            about = {"run": str(ref), "reason": str(reason()), "wait_s": round(self._until - now, 1)}
            log.warning("run_waits", extra=about)
            self._say_at, self._has_said = now + _SAY_EVERY_S, True
        self._sleep(min(at_most_s, self._until - now))
        return True

    def over(self, ref: RunRef) -> None:
        """Say that the wait is over, if the log has said that there was one."""
        if self._first_at is not None and self._has_said:
            waited_s = round(self._monotonic() - self._first_at, 1)
            log.info("run_waited", extra={"run": str(ref), "waited_s": waited_s})
