"""The values that a checker and a consumer exchange about a key."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Final

from idempotent.errors import without_values
from idempotent.forks import in_child
from idempotent.keys import NO_KEY, Key
from idempotent.message import Position
from idempotent.policy import Backoff
from idempotent.values import value

OWNER_BYTES: Final = 16
_COUNT_BYTES: Final = 6
NOBODY: Final = bytes(OWNER_BYTES)
"""The owner of a key whose handler failed. Its lease is the backoff: nobody claims it before that is over."""
ERROR_LIMIT: Final = 1000
UNBOUNDED: Final = 2**31 - 1
"""The `max_attempts` of a consumer without a bound, and the greatest: the stores count attempts in 32 bits."""
DIED_ERROR: Final = "its process died while it ran"
UNKNOWN_EFFECT: Final = "effect unknown: the lease ended without an answer; look, then resolve the key"


class Guarantee(Enum):
    """What a checker promises about the effect of a message."""

    TRANSACTIONAL = "transactional"
    """Effect and key commit together: once, whatever crashes."""
    LEASED = "leased"
    """Once, unless a process dies or stalls between effect and completion: then the policy decides."""
    CLAIM_ONCE = "claim_once"
    """A claim never lapses. After a crash the key stays in progress until a person reopens or resolves it: the message
    is neither run again nor acknowledged. (QMQ acknowledges it, and its effect may never have happened.)"""


class Remembers(Enum):
    """What a checker remembers of a processed message."""

    KEYS = "keys"
    """Its key: a message with the same key is a duplicate."""
    POSITIONS = "positions"
    """How far a partition is processed. A message that was sent twice has two positions, and is two messages."""
    NOTHING = "nothing"
    """Another system decides which messages are done. Until then the position identifies a message."""

    @property
    def by_position(self) -> bool:
        """Whether its position in a partition identifies a message, instead of its key."""
        return self is not Remembers.KEYS


class Verdict(Enum):
    """A checker's answer to a claim."""

    ACQUIRED = "acquired"
    DUPLICATE = "duplicate"
    IN_PROGRESS = "in_progress"
    DEAD = "dead"


class KeyStatus(IntEnum):
    """The state of a stored key. Stores keep the number; all states below DONE are in progress."""

    IN_PROGRESS = 1
    IN_PROGRESS_PARK = 3
    """Claimed by a consumer that parks: kept until a person decides."""
    DONE = 4
    DEAD = 5

    @property
    def in_progress(self) -> bool:
        """Whether a claim holds the key."""
        return self < KeyStatus.DONE


class Lapsed(Enum):
    """What a claim does when it meets a key whose lease has ended."""

    __hash__ = object.__hash__  # by identity, as equality

    TAKE_OVER = "take_over"
    """Become its owner. The fence grows by one."""
    ASK = "ask"
    """The same. The consumer is asked whether the effect happened, so a claim without an answer must lapse again."""
    LEAVE = "leave"
    """Answer IN_PROGRESS with its `deaths`, and change nothing."""
    PARK = "park"
    """Mark it DEAD, "effect unknown"."""


class _Owners:
    """A random prefix for each process, and a counter: a system call for each token would cost more than all else."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.prefix = os.urandom(OWNER_BYTES - _COUNT_BYTES)
        self.numbers = itertools.count()


_owners: Final = _Owners()
in_child(_owners.begin)


def new_owner() -> bytes:
    """A new owner token, 16 bytes, unique across all processes and calls."""
    return _owners.prefix + next(_owners.numbers).to_bytes(_COUNT_BYTES)


@value
class ClaimRequest:
    """One delivery's request for its key.

    Attributes:
        key: the key.
        owner: the owner token, 16 bytes (`new_owner`). The keys of one `claim_many` may share a token. A token is never
            reused for another delivery: a store answers ACQUIRED to the owner that it knows.
        fingerprint: 20-byte hash of the content, or None when content is not compared.
        status: the in-progress status to store.
        on_lapsed: what to do with a lapsed claim of another owner; without leases, with a message whose process died.
        max_attempts: the number of attempts at which the key becomes DEAD, for `Claim.max_attempts`.
        partition: the message's partition, for checkers that keep positions.
        position: the message's place in its partition.
        redelivered: the broker marks the message as one that it has delivered before: its process may have died.
        waits: wait for a key that another transaction has locked; False: a store that can do so raises StoreBusyError
            at once. All requests of one call have the same value.
    """

    key: Key
    owner: bytes = field(default_factory=new_owner)
    fingerprint: bytes | None = None
    status: KeyStatus = KeyStatus.IN_PROGRESS
    on_lapsed: Lapsed = Lapsed.TAKE_OVER
    max_attempts: int | None = None
    partition: Key | None = None
    position: Position | None = None
    redelivered: bool = False
    waits: bool = True

    def differs(self, fingerprint: bytes | None) -> bool:
        """Whether the stored content is another one. Content without a fingerprint is not compared."""
        mine = self.fingerprint
        return mine is not None and fingerprint is not None and mine != fingerprint


@value
class Claim:
    """One delivery's ownership of a key.

    Attributes:
        key: the key; `NO_KEY` when the consumer allows a handler to run without a key.
        fence: grows with every claim of the key; send it downstream to refuse a stale writer.
        owner: random token; only its holder can complete or release the key.
        transaction: the transaction that contains the claim, for transactional checkers.
        partition: the message's partition, for checkers that keep positions.
        attempt: one more than the counted failures of the key, if the store has looked: 2 or more in a retry after its
            backoff. None: the key was new, so this is the first execution as far as is known.
        max_attempts: at how many the key becomes DEAD, if the attempt is known, and there is a bound.
        deaths: how many processes in a row have died while they ran this message, as far as is known.
    """

    key: Key
    fence: int = 0
    owner: bytes = field(default=b"", repr=False)
    transaction: Any = field(default=None, repr=False)
    partition: Key | None = field(default=None, repr=False)
    attempt: int | None = None
    max_attempts: int | None = None
    deaths: int = 0

    @property
    def is_last_attempt(self) -> bool | None:
        """Whether the message is DEAD after one more exception that is retried; None: the attempt is not known."""
        if self.attempt is None:
            return None
        return self.max_attempts is not None and self.attempt >= self.max_attempts

    @property
    def empty(self) -> bool:
        """Whether the claim has no key and no transaction, so that completing or releasing it does nothing."""
        return self.key is NO_KEY and self.transaction is None


@value
class Decision:
    """A verdict with its details.

    Attributes:
        verdict: the answer.
        claim: the ownership, when ACQUIRED.
        retry_after_s: the rest of the owner's lease, or of the key's backoff, in seconds, when IN_PROGRESS.
        deaths: how many processes in a row have died while they ran the message: each left a lapsed lease, or without
            leases a start without an end. The key was taken over when ACQUIRED, left unchanged when IN_PROGRESS.
        result: what the handler of the first delivery returned, as stored.
        fingerprint: the stored content hash.
        reason: why the key is DEAD; or why it is IN_PROGRESS, if another delivery does not have it.
        held: the key has no owner: its handler failed, and `retry_after_s` is the rest of its backoff.
    """

    verdict: Verdict
    claim: Claim | None = None
    retry_after_s: float = 0.0
    deaths: int = 0
    result: bytes | None = None
    fingerprint: bytes | None = None
    reason: str | None = None
    held: bool = False

    @property
    def lapsed(self) -> bool:
        """Whether the process of the run before died, or stalled for longer than its lease."""
        return self.deaths > 0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a claim is released, when the release counts as an attempt.

    Attributes:
        error: a text for people; reduced to one printable line of at most 1000 characters, without passwords and
            without the values of an SQL statement.
        max_attempts: the key is DEAD once it has this many attempts; `UNBOUNDED`: never.
        fatal: the key is DEAD at once.
        backoff: how long the key stays unavailable to every delivery; None: it is free at once.
        share: the share of the backoff's longest delay that this failure waits, drawn once: the store and the broker
            wait equally long.
    """

    error: str
    max_attempts: int
    fatal: bool = False
    backoff: Backoff | None = None
    share: float = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Draw the share. Make the error storable: PostgreSQL refuses NUL, and columns have a maximum length."""
        object.__setattr__(self, "share", 1.0 if self.backoff is None else self.backoff.draw())
        text = without_values(self.error)[:ERROR_LIMIT]
        line = "".join(char if char.isprintable() else " " for char in text)
        object.__setattr__(self, "error", line)

    def kills(self, attempts: int) -> bool:
        """Whether the key is DEAD after this many attempts."""
        return self.fatal or attempts >= self.max_attempts

    def delay_s(self, attempts: int) -> float:
        """Seconds until the key may be claimed again after this many attempts; 0: it is free at once."""
        return 0.0 if self.backoff is None else self.backoff.longest_s(attempts) * self.share

    def delay_us(self, attempts: int) -> int:
        """`delay_s` in whole microseconds."""
        return int(self.delay_s(attempts) * 1_000_000)

    def shortest_us(self, attempts: int) -> int:
        """What another failure of the key waits at least after this many attempts, in whole microseconds."""
        if self.backoff is None:
            return 0
        return int(self.backoff.longest_s(attempts) * (1.0 - self.backoff.jitter) * 1_000_000)


@dataclass(frozen=True, slots=True)
class Released:
    """The result of releasing a claim.

    Attributes:
        owned: the claim was still the key's owner; if not, the release changed nothing.
        attempts: real executions that failed so far, this one included.
        dead: the key is DEAD now.
    """

    owned: bool
    attempts: int = 0
    dead: bool = False


@value
class Completion:
    """A claim whose effect happened, and the result to store with it (None: no result)."""

    claim: Claim
    result: bytes | None = None
