"""Lead: a key in the store by which one process at a time does what need not be done by each."""

from __future__ import annotations

from typing import Final

from idempotent.admin import OWN
from idempotent.checkers.protocol import ClaimProtocol
from idempotent.claims import Claim, ClaimRequest
from idempotent.keys import KeySpace


class Lead:
    """The lead in one task. When the process that has it dies, its lease ends, and another one takes it.

    Args:
        protocol: that of the checker which claims the key.
        task: what is led; it names the key.
    """

    def __init__(self, protocol: ClaimProtocol, task: str) -> None:
        """Claim nothing yet."""
        self._protocol: Final = protocol
        # After a crash, a claim that never lapses would block the task permanently.
        self._is_free: Final = protocol.hooks.lease_s is None
        self._request: Final = ClaimRequest(KeySpace(OWN, task).key("leader"))
        self._claim: Claim | None = None

    def take(self) -> bool:
        """Whether this process has the lead, from before or from now on. Without leases every process has it.

        Raises:
            StoreError: the store did not answer.
        """
        if self._is_free:
            return True
        if self._claim is None or not self._protocol.holds(self._claim):
            self._claim = self._protocol.claim(self._request).claim
        return self._claim is not None

    def give_up(self) -> None:
        """Let another process have the lead; if the store does not answer, when the lease ends."""
        claim, self._claim = self._claim, None
        if claim is not None:
            self._protocol.free(claim)

    def forget(self) -> None:
        """Renew the lease no longer, also of a claim that an interrupt kept from being noted here."""
        self._protocol.abandon_all_of(self._request.owner)
