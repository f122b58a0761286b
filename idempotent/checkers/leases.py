"""A background thread renews the leases of all claims in flight of one checker."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from idempotent.admin import is_own
from idempotent.checkers.repeating import RepeatingThread
from idempotent.claims import Claim
from idempotent.errors import StoreBusyError, StoreError, StoreUnavailableError, described
from idempotent.forks import generation
from idempotent.keys import NO_KEY
from idempotent.logs import EventLog
from idempotent.observe.counting import CountEvent
from idempotent.observe.events import Event
from idempotent.observe.log_lines import about_key

log = EventLog(__name__)

# A renewal without an answer is replaced early enough for three more within the lease.
_PATIENCE: Final = 1 / 6
_SHORTEST_PATIENCE_S: Final = 0.5
_MAX_HANGING: Final = 8
# How many parts a renewal is split into that a locked key held up: each such part waits about a second for the lock.
_PARTS: Final = 8

_STORE_AWAY: Final = (
    "the store did not renew it: see lease_renewal_failed and lease_renewal_hangs; raise lease_s above the length of "
    "such an outage"
)
_PROCESS_LATE: Final = "a handler held the GIL, the process was paused or the store was slow; raise lease_s"

Since: TypeAlias = list[float]
"""When the leases of some claims began at the latest, by the monotonic clock. One element, shared by these claims."""


class LeaseKeeper:
    """Renews every held claim each third of the lease.

    A failed renewal cancels nothing: the handler continues, and the next round tries again. If the lease was lost, the
    conditional completion reports it. Each round has a thread of its own: on a silent network it may wait forever, and
    then another one, on another connection, takes its place.

    Args:
        renew: renews claims in one statement; False for each claim that is no longer owned.
        reconnect: forgets the store's idle connections, after one of them gave no answer.
        lease_s: the lease, in seconds; None: claims never lapse, and nothing is renewed.
        count: counts a lease that ended.
    """

    def __init__(
        self,
        renew: Callable[[Sequence[Claim]], list[bool]],
        reconnect: Callable[[], object],
        lease_s: float | None,
        count: CountEvent,
    ) -> None:
        self._renew = renew
        self._reconnect = reconnect
        self._lease_s = math.inf if lease_s is None else lease_s
        self._count = count
        self._patience_s = max(self._lease_s * _PATIENCE, _SHORTEST_PATIENCE_S)
        self._held: dict[Claim, Since] = {}
        self._repeating = RepeatingThread(self._round, "idempotent-leases", self._lease_s / 3)
        self._hanging: list[threading.Thread] = []
        self._refused_at = -math.inf
        """When a renewal last failed, or got no answer, by the monotonic clock."""
        self._generation = generation.number

    def hold(self, claims: Sequence[Claim]) -> None:
        """Renew these from now on.

        Raises:
            StoreUnavailableError: no thread can be started that renews them.
        """
        if self._lease_s == math.inf:
            return
        if self._generation != generation.number:
            self._forget_parent()
        # Claims are compared by identity. Changing a dict's entry is atomic in CPython, so no message takes a lock.
        held = self._held
        since = [time.monotonic()]
        for claim in claims:
            held[claim] = since
        if claims:
            try:
                self._repeating.start()
            except RuntimeError as error:
                for claim in claims:
                    held.pop(claim, None)
                raise StoreUnavailableError(
                    "the leases cannot be renewed: the system starts no more threads"
                ) from error

    def drop(self, claims: Sequence[Claim]) -> None:
        """Renew these no longer."""
        lapsed_before = time.monotonic() - self._lease_s
        for claim in claims:
            since = self._held.pop(claim, None)
            if since is not None and since[0] < lapsed_before:
                self._count_late(claim, since[0])

    @property
    def held(self) -> Sequence[Claim]:
        """The claims in flight."""
        return list(self._held)

    def close(self) -> None:
        """Stop renewing everything."""
        self._held.clear()
        self._repeating.stop()  # a claim that is held after this starts it again

    def _forget_parent(self) -> None:
        # After fork() the claims are the parent's.
        self._held = {}
        self._hanging = []
        self._generation = generation.number  # last: until then every thread repeats this

    def _round(self) -> None:
        """Renew all leases, in another thread if the first one gets no answer."""
        while self._held:
            self._hanging = [thread for thread in self._hanging if thread.is_alive()]
            if len(self._hanging) >= _MAX_HANGING:
                return
            renewal = threading.Thread(target=self._renew_all, name="idempotent-renewal", daemon=True)
            try:
                renewal.start()
            except (
                RuntimeError
            ):  # the system starts no more threads: this one renews, and waits as long as it takes
                self._renew_all()
                return
            renewal.join(self._patience_s)
            if not renewal.is_alive():
                return
            self._hanging.append(renewal)
            self._refused_at = time.monotonic()
            log.error(
                "lease_renewal_hangs",
                extra={"claims": len(self._held), "waited_s": round(self._patience_s, 1)},
            )
            self._reconnect()

    def _renew_all(self) -> None:
        self._renew_part(list(self._held.items()), time.monotonic() + self._lease_s / 3)
        if not self._repeating.runs:  # closed meanwhile: a connection that was made for this would stay open
            self._reconnect()

    def _renew_part(self, held: Sequence[tuple[Claim, Since]], until: float) -> None:
        if not held:
            return
        began = time.monotonic()
        try:
            kept = list(zip(held, self._renew([claim for claim, _ in held]), strict=True))
        except Exception as error:
            if isinstance(error, StoreBusyError) and len(held) > 1 and time.monotonic() < until:
                for part in range(_PARTS):  # one locked key must not let the leases of the others end
                    self._renew_part(held[part::_PARTS], until)
                return
            self._refused_at = time.monotonic()
            # Even a bug in a checker must not end the renewals of all other claims.
            level = logging.WARNING if isinstance(error, StoreError) else logging.ERROR
            log.log(level, "lease_renewal_failed", extra={"claims": len(held), "error": described(error)})
            return
        lapsed_before = time.monotonic() - self._lease_s
        late = []
        for (claim, since), still_owned in kept:
            if claim not in self._held:
                continue  # its handler has finished
            if not still_owned:
                self._held.pop(claim, None)
                log.warning("lease_lost", extra=about_key(claim.key))
            elif since[0] < lapsed_before:
                late.append((claim, since[0]))
        for (_, since), still_owned in kept:
            if still_owned:
                since[0] = max(since[0], began)
        for claim, before in late:
            self._count_late(claim, before)

    def _count_late(self, claim: Claim, since: float) -> None:
        """Count and log a message's lease that ended before its renewal: another delivery could have taken the key."""
        if claim.key is not NO_KEY and not is_own(claim.key.consumer):
            self._count(claim.key.consumer, Event.LEASE_RENEWED_LATE)
            hint = _STORE_AWAY if self._refused_at > since else _PROCESS_LATE
            log.warning("lease_renewed_late", extra={**about_key(claim.key), "hint": hint})
