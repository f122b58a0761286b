"""Explanations: which effect may happen again under which guarantee, and what the history must then show.

A transactional checker, and one that keeps offsets: no effect. It commits together with its key, or offset.

A leased checker: an effect may happen again only if, between it and its completion,

- its process was killed;
- its process, or that of the second effect, was paused or was not scheduled, for about a lease;
- the store was out of reach of one of the two, for about a lease: stalled, restarted, or its disk full;

or if the store lost acknowledged writes after the first claim.

A cut connection alone explains nothing: the completion is sent again on a new one, and the lease is renewed until the
store has it. Nor does a wrong clock: all times are the store's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from idempotent.claims import Guarantee
from tests.torture.faults.kinds import FaultGroup, FaultKind, Incident, Mishap
from tests.torture.stores import Effect

KILLS: Final = frozenset({*FaultGroup.KILL.kinds, Mishap.ENDED})
PAUSES: Final = frozenset({*FaultGroup.PAUSE.kinds, Mishap.STARVED})
OUTAGES: Final = frozenset({FaultKind.STALL_STORE, FaultKind.RESTART_STORE, FaultKind.FILL_DISK})
LOSSES: Final = frozenset({FaultKind.FORGET, FaultKind.EVICT})
# A lease is renewed each third of its time: after two missed renewals it may lapse.
_ABOUT_A_LEASE: Final = 0.5
# In leases: a claim is older than its effect, because handlers of its group may take long.
_OLDEST_CLAIM: Final = 3.0


@dataclass(frozen=True, slots=True)
class Explanations:
    """Finds the incident that explains a repeated effect.

    `settled` has the time when (id, process) was first settled as processed: from then on its completion was recorded.
    """

    guarantee: Guarantee
    incidents: Sequence[Incident]
    settled: Mapping[tuple[str, str], float]
    lease_s: float

    def of(self, first: Effect, second: Effect) -> Incident | None:
        """The incident that explains the second effect; None: no incident does."""
        if self.guarantee is not Guarantee.LEASED:
            return None
        return next(
            (incident for incident in self.incidents if self._explains(incident, first, second)), None
        )

    def _explains(self, incident: Incident, first: Effect, second: Effect) -> bool:
        claimed_at = first.at - self.lease_s * _OLDEST_CLAIM
        if incident.kind in LOSSES:
            return claimed_at <= incident.until and incident.at <= second.at
        recorded_at = self.settled.get((first.id, first.process))
        if incident.kind in KILLS:
            return (
                incident.process == first.process
                and recorded_at is None
                and first.at <= incident.until
                and incident.at <= second.at
            )
        if incident.kind not in PAUSES | OUTAGES or incident.lasted_s < self.lease_s * _ABOUT_A_LEASE:
            return False
        if incident.until < claimed_at or incident.at > second.at:
            return False
        if _concerns(incident, second):
            return True
        return _concerns(incident, first) and (recorded_at is None or incident.at < recorded_at)


def _concerns(incident: Incident, effect: Effect) -> bool:
    if incident.kind in PAUSES:
        return incident.process == effect.process
    # A consumer's proxy stays when its process is replaced.
    return incident.process == "" or incident.process.partition(".")[0] == effect.process.partition(".")[0]
