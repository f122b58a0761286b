"""KeyAdmin: inspect and change a store's keys by hand. Pause: a consumer that waits. Finding: a result of a check."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from idempotent.claims import KeyStatus
from idempotent.errors import ConfigurationError
from idempotent.keys import SHOWN, Key, KeySpace, consumer_in

NEVER_US: Final = 2**53 - 1
"""The stored expiry of a key that never expires: the greatest whole number that Lua can hold."""
OWN: Final = "idempotent"
"""The subject of the library's own keys: those of pauses, and of tasks that one process leads. No consumer has it."""
OWN_HEAD: Final = f"{OWN}:"
"""What their readable texts begin with."""
PAUSES: Final = KeySpace(OWN, "pause")
"""The keys that say which consumers are paused."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One stored key, in readable form.

    Attributes:
        hash: the exact identity, 20 bytes.
        text: the readable text, `subject:group:id`.
        status: its state.
        fence: distinguishes its owner from earlier owners.
        lease_until_us: end of the lease, microseconds since the epoch, UTC, by the store's clock; None: no lease.
        update_at_us: last change, likewise.
        expires_at_us: when gc may delete it, likewise; None: never, because it waits for a person.
        attempts: failed executions so far.
        last_error: the error of the last failed execution.
        result: what the handler returned, as stored JSON.
        now_us: the store's clock when the record was read.
        held: its handler failed; nobody may claim it before `lease_until_us`, when its backoff is over.
        deaths: if it is in progress, how many processes in a row had died while they ran it when its owner claimed it.
    """

    hash: bytes
    text: str
    status: KeyStatus
    fence: int
    lease_until_us: int | None
    update_at_us: int
    expires_at_us: int | None
    attempts: int
    last_error: str | None
    result: bytes | None
    now_us: int
    held: bool = False
    deaths: int = 0

    @property
    def state(self) -> str:
        """Differs after each change of the key: what a person decided about is as it was if this is the same."""
        return f"{self.hash.hex()}.{self.fence}.{self.status:d}.{self.update_at_us}"

    @property
    def lapsed(self) -> bool:
        """Whether the key is in progress and its lease has ended."""
        if self.held or not self.status.in_progress or self.lease_until_us is None:
            return False
        return self.lease_until_us < self.now_us


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """Which keys to select.

    Attributes:
        consumer: `subject:group`; None: all consumers, without the library's own keys, which belong to none.
        statuses: these states; empty: all.
        lapsed: only keys in progress whose lease has ended.
    """

    consumer: str | None = None
    statuses: frozenset[KeyStatus] = frozenset()
    lapsed: bool = False

    @property
    def head(self) -> str | None:
        """What the readable text of the consumer's keys begins with; None: keys of all consumers are meant."""
        return None if self.consumer is None else f"{self.consumer}:"[:SHOWN]

    def matches(self, record: KeyRecord) -> bool:
        """Whether this key is meant."""
        if self.head is None:
            if is_own(record.text):
                return False
        elif not record.text.startswith(self.head):
            return False
        if self.statuses and record.status not in self.statuses:
            return False
        return record.lapsed or not self.lapsed


def is_own(text: str) -> bool:
    """Whether a readable text is that of one of the library's own keys."""
    return text.startswith(OWN_HEAD)


def refuse_own(text: str) -> None:
    """Raise ConfigurationError if nobody may resolve the key of this text, because it is one of the library's own."""
    if is_own(text):
        raise ConfigurationError(
            f"{text} is a key of the library, not of a message: to end a pause, `idempotent resume`; what else "
            "is there ends by itself"
        )


@dataclass(frozen=True, slots=True)
class KeyStats:
    """How many keys a consumer has in one state.

    Attributes:
        consumer: `subject:group`.
        status: the state.
        count: how many keys.
        lapsed: how many of them have a lease that ended.
        oldest_update_us: the earliest last change among them, microseconds since the epoch.
    """

    consumer: str
    status: KeyStatus
    count: int
    lapsed: int
    oldest_update_us: int


def counted(records: Iterable[KeyRecord]) -> list[KeyStats]:
    """Keys counted by consumer and state, in this order, without the library's own."""
    found: dict[tuple[str, KeyStatus], KeyStats] = {}
    for record in records:
        if is_own(record.text):
            continue
        name = (consumer_in(record.text), record.status)
        seen = found.get(name, KeyStats(*name, 0, 0, record.update_at_us))
        found[name] = KeyStats(
            *name,
            seen.count + 1,
            seen.lapsed + record.lapsed,
            min(seen.oldest_update_us, record.update_at_us),
        )
    return [found[name] for name in sorted(found)]


@dataclass(frozen=True, slots=True)
class Pause:
    """A consumer that is paused: its workers take none of its messages.

    Attributes:
        consumer: `subject:group`.
        since_us: since when, microseconds since the epoch, UTC, by the store's clock.
        now_us: the store's clock when this was read.
        by: who paused it.
        note: why; empty: nobody said.
    """

    consumer: str
    since_us: int
    now_us: int
    by: str
    note: str


@dataclass(frozen=True, slots=True)
class WaitingKeys:
    """What of a consumer's keys a person may have to look at.

    Attributes:
        dead: DEAD keys.
        lapsed: claims whose lease has ended.
        oldest_claim_s: seconds since the first claim of the key that is in progress for longest; 0: none is.
    """

    dead: int
    lapsed: int
    oldest_claim_s: float


@dataclass(frozen=True, slots=True)
class StoreStats:
    """A measure of a store, as workers take one every fifteen seconds.

    Attributes:
        consumers: by `subject:group`; consumers all of whose keys are done are missing.
        expired: keys past their expiry that are not deleted yet.
        runs: how many runs of Spark are in the same database, by state; empty: none, or the store is Redis.
        prepared_waits_s: since the lease ended of the PREPARED run that has had no driver for longest; 0: all have one.
    """

    consumers: Mapping[str, WaitingKeys]
    expired: int
    runs: Mapping[str, int] = field(default_factory=dict)
    prepared_waits_s: float = 0.0


def measured(records: Iterable[KeyRecord], expired: int = 0) -> StoreStats:
    """The measure of these keys.

    Args:
        records: those that are not DONE at least.
        expired: keys beyond them that are past their expiry.
    """
    found: dict[str, WaitingKeys] = {}
    for record in records:
        is_claimed = record.status.in_progress and not record.held
        if record.expires_at_us is not None and record.expires_at_us < record.now_us:
            leased = is_claimed and not record.lapsed
            expired += not leased and record.status is not KeyStatus.IN_PROGRESS_PARK
        if record.status is KeyStatus.DONE or is_own(record.text):
            continue
        name = consumer_in(record.text)
        seen = found.get(name, _NONE_WAIT)
        found[name] = WaitingKeys(
            seen.dead + (record.status is KeyStatus.DEAD),
            seen.lapsed + record.lapsed,
            max(seen.oldest_claim_s, (record.now_us - record.update_at_us) / 1e6 if is_claimed else 0.0),
        )
    return StoreStats(found, expired)


_NONE_WAIT: Final = WaitingKeys(0, 0, 0.0)


class KeyAdmin(ABC):
    """Inspect keys, and resolve those that wait for a person.

    Every change is conditioned on the record that was read: a key that changed in between is left unchanged.

    Raises:
        StoreError: the store does not answer (every method).
    """

    @abstractmethod
    def list(self, selection: KeyFilter, *, limit: int | None = None) -> Iterator[KeyRecord]:
        """The selected keys, at most `limit`, read in bounded batches."""

    @abstractmethod
    def get(self, key: Key) -> KeyRecord | None:
        """One key, looked up by its hash; None when it is not stored."""

    def get_many(self, keys: Sequence[Key]) -> Mapping[bytes, KeyRecord]:
        """Those of at most a few hundred keys that are stored, by their hash. One call of the store, if it can."""
        found = {key.hash: self.get(key) for key in keys}
        return {hashed: record for hashed, record in found.items() if record is not None}

    @abstractmethod
    def stats(self) -> Sequence[KeyStats]:
        """Counts by consumer and state, without the library's own keys."""

    def measure(self) -> StoreStats:
        """What `IdempotentCollector` shows of the store. The default reads every key."""
        return measured(self.list(KeyFilter()))

    @abstractmethod
    def reopen(self, record: KeyRecord) -> bool:
        """Delete the key and its attempts, so that its next delivery runs. A key with a live lease is not deleted.

        Returns whether the key was unchanged since it was read, and is now deleted.
        """

    @abstractmethod
    def mark_done(self, record: KeyRecord) -> bool:
        """Make a key that is DEAD, or whose lease lapsed, DONE: its effect happened. Later deliveries are duplicates.

        Returns whether the key was unchanged since it was read, and is now DONE.
        """


DEAD_LIST: Final = "idempotent dead list MODULE --broker URL --checker NAME=URL"
"""What findings say to type about dead letters. `idempotent doctor` puts in what it was given."""


class Level(Enum):
    """The severity of a finding."""

    OK = "ok"
    """No problem."""
    ADVICE = "advice"
    """No problem of this server; the hint says what could be better, or what cannot be seen here."""
    WARNING = "warning"
    """Works now; a crash, a failover or full memory may repeat an effect."""
    ERROR = "error"
    """Does not work, or will lose keys in normal operation."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        level: its severity.
        what: what was found, one sentence.
        hint: what to do about it; empty when no action is needed.
        final: nothing else can be looked at.
    """

    level: Level
    what: str
    hint: str = ""
    final: bool = False
