"""What every part of the checker contract stands on: capabilities, one checker per test, and a few verbs."""

from __future__ import annotations

import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Any, ClassVar, Final, TypeVar

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.claims import Claim, ClaimRequest, Decision, Lapsed, Verdict
from idempotent.keys import Key, KeySpace
from idempotent.policy import Backoff

Test = TypeVar("Test", bound=Callable[..., None])

_NEEDS: Final = "_idempotent_needs"
_WITHOUT: Final = "_idempotent_without"
_SPACE: Final = KeySpace("contract", "tests")

LONG_S: Final = 3600.0
"""Longer than any test."""
_AGED_LEASE_S: Final = 600.0
_AGED_RETENTION_S: Final = LONG_S
_STEADY_LEASE_S: Final = 5.0
_WAITED_RETENTION_S: Final = 0.1
_STEADY_RETENTION_S: Final = 3.0
_WAITED_BACKOFF_S: Final = 4.0
_LAPSE_DEADLINE_S: Final = 10.0


class Capability(Enum):
    """What not every checker has. Tests of what yours `lacks` are not collected."""

    RECORDED_CLAIMS = "recorded_claims"
    """A claim is a record with an owner token. Lacking it, a claim is an open transaction, and the claims of one
    `claim_many` complete together."""
    LEASES = "leases"
    """Claims lapse and can be renewed."""
    PARALLEL_CLAIMS = "parallel_claims"
    """Claims of two keys can be open at once. Lacking it, the store has one writer at a time."""
    GARBAGE_COLLECTION = "garbage_collection"
    """`garbage_collect` forgets expired keys. Lacking it, the store does so by itself."""


def needs(*capabilities: Capability) -> Callable[[Test], Test]:
    """Collect the test only for checkers that have all of these."""
    return _marking(_NEEDS, capabilities)


def without(*capabilities: Capability) -> Callable[[Test], Test]:
    """Collect the test only for checkers that lack all of these."""
    return _marking(_WITHOUT, capabilities)


class ContractBase(ABC):
    """One checker per test, closed after it."""

    lacks: ClassVar[AbstractSet[Capability]] = frozenset()
    """What the checker cannot do."""
    lease_s: ClassVar[float] = 0.2
    """How long a claim lasts that a test lets lapse, in seconds. Longer for a store with a coarse clock. Not used by a
    suite that overrides `age`."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Leave out the tests that do not apply."""
        super().__init_subclass__(**options)
        if inspect.isabstract(cls):
            return
        for base in reversed(cls.__mro__):
            for name, test in list(vars(base).items()):
                needed: frozenset[Capability] = getattr(test, _NEEDS, frozenset())
                unwanted: frozenset[Capability] = getattr(test, _WITHOUT, frozenset())
                if needed or unwanted:
                    applies = not needed & cls.lacks and unwanted <= cls.lacks
                    # pytest does not collect None.
                    setattr(cls, name, test if applies else None)

    @abstractmethod
    def make_checker(self, *, lease_s: float | None, retention_s: float) -> AbstractIdempotentChecker:
        """A checker over an empty store. Called once a test.

        Args:
            lease_s: pass it on. A checker without leases ignores it.
            retention_s: pass it on.
        """

    def age(self, checker: AbstractIdempotentChecker, seconds: float) -> None:
        """Make everything in the store older: each lease end and each expiry moves this far into the past.

        The default waits. Override it where a test can change the stored times or the store's clock: the tests then
        use leases of minutes, wait for nothing, and give the same verdict on a slow machine.

        Args:
            checker: what `make_checker` returned.
            seconds: how much older. Claims without a lease end stay without one.
        """
        del checker
        time.sleep(seconds)

    def teardown_method(self) -> None:
        """Close what the test has made; pytest calls it."""
        for checker in self._made:
            checker.close()
        self._made.clear()

    @property
    def _made(self) -> list[AbstractIdempotentChecker]:
        made: list[AbstractIdempotentChecker] = self.__dict__.setdefault("_checkers_made", [])
        return made

    def checker(
        self, *, lease_s: float | None = LONG_S, retention_s: float = LONG_S
    ) -> AbstractIdempotentChecker:
        """The checker under test."""
        checker = self.make_checker(lease_s=lease_s, retention_s=retention_s)
        self._made.append(checker)
        return checker

    def has(self, capability: Capability) -> bool:
        """Whether the checker can do this."""
        return capability not in self.lacks

    @staticmethod
    def key(message_id: str | bytes = "m-1") -> Key:
        """A key of the consumer that the tests play."""
        return _SPACE.key(message_id)

    def request(self, message_id: str | bytes = "m-1", **options: Any) -> ClaimRequest:
        """Another delivery of this message, asking for its key."""
        return ClaimRequest(self.key(message_id), **options)

    def ask(
        self, checker: AbstractIdempotentChecker, message_id: str | bytes = "m-1", **options: Any
    ) -> Decision:
        """What another delivery of this message is told."""
        return checker.lone.claim(self.request(message_id, **options))

    def acquire(
        self, checker: AbstractIdempotentChecker, message_id: str | bytes = "m-1", **options: Any
    ) -> Claim:
        """A delivery that gets its key."""
        return acquired(self.ask(checker, message_id, **options))

    def finish(
        self, checker: AbstractIdempotentChecker, message_id: str | bytes = "m-1", result: bytes | None = None
    ) -> None:
        """A delivery that is processed."""
        assert checker.lone.complete(self.acquire(checker, message_id), result)

    @property
    def brief_lease_s(self) -> float:
        """The lease of claims that need only lapse: nothing in the test depends on their being live before."""
        return _AGED_LEASE_S if self._overrides_age else self.lease_s

    @property
    def steady_lease_s(self) -> float:
        """The lease of claims that lapse and have to be live at another moment of the test."""
        return _AGED_LEASE_S if self._overrides_age else max(self.lease_s, _STEADY_LEASE_S)

    @property
    def brief_retention_s(self) -> float:
        """The retention of keys that expire in the test."""
        return _AGED_RETENTION_S if self._overrides_age else _WAITED_RETENTION_S

    @property
    def steady_retention_s(self) -> float:
        """The retention of keys that expire and have to be stored at another moment of the test."""
        return _AGED_RETENTION_S if self._overrides_age else _STEADY_RETENTION_S

    @property
    def backoff(self) -> Backoff:
        """The backoff of handlers that fail: 225 seconds, 450, ...; 4 seconds, 8, ... where the test waits for it."""
        first_s = LONG_S / 16 if self._overrides_age else _WAITED_BACKOFF_S
        return Backoff(first_s, 16 * first_s)

    @property
    def _overrides_age(self) -> bool:
        return type(self).age is not ContractBase.age

    def lapse(self, checker: AbstractIdempotentChecker, *claims: Claim) -> None:
        """Let the leases of these claims end, as if their process had stalled; return when the store says so."""
        assert checker.lease_s is not None
        for claim in claims:
            checker.protocol.abandon(claim)
        self.age(checker, checker.lease_s * 1.1)
        deadline = time.monotonic() + _LAPSE_DEADLINE_S
        # A renewal that was under way when a claim was abandoned may have given it another lease.
        while not all(
            left.lapsed for left in checker.protocol.claim_many([_leaving(claim) for claim in claims])
        ):
            assert time.monotonic() < deadline, f"the leases of {[claim.key for claim in claims]} do not end"
            self.age(checker, checker.lease_s * 0.1)

    def left(self, checker: AbstractIdempotentChecker, claim: Claim) -> Decision:
        """What a delivery is told that takes over nothing, so that asking changes nothing."""
        return checker.lone.claim(_leaving(claim))


def _leaving(claim: Claim) -> ClaimRequest:
    return ClaimRequest(claim.key, on_lapsed=Lapsed.LEAVE)


def acquired(decision: Decision) -> Claim:
    """The claim of a decision that must have one."""
    assert decision.verdict is Verdict.ACQUIRED
    assert decision.claim is not None
    return decision.claim


def _marking(attribute: str, capabilities: tuple[Capability, ...]) -> Callable[[Test], Test]:
    def mark(test: Test) -> Test:
        setattr(test, attribute, frozenset(capabilities))
        return test

    return mark
