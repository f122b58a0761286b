"""KeyHolding: which attempt may run the handler for a key (modes replay and effect)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from idempotent.adapters.spark.ledger.claiming import KeyClaiming, checked, in_parts
from idempotent.adapters.spark.ledger.claims import ATTEMPT_BYTES, ClaimState, Held, Hold, PendingRow
from idempotent.adapters.spark.ledger.refusals import require_open
from idempotent.adapters.spark.ledger.runs import MICROSECONDS, RunRef, RunState
from idempotent.errors import (
    ConfigurationError,
    StoreBusyError,
)

_ROUNDS: Final = 20
_PACKET_BYTES: Final = 4_000_000


@dataclass(frozen=True, slots=True)
class Holder:
    """An attempt of a task that acquires keys: its run, the run's epoch, its token, and its lease in microseconds."""

    token: int
    epoch: int
    attempt: bytes
    lease_us: int


class KeyHolding(KeyClaiming):
    """Claims that are PENDING while a handler runs and DONE after it, and stay DONE even if the run is aborted."""

    def acquire(self, ref: RunRef, attempt: bytes, hashes: Sequence[bytes], lease_s: float) -> list[Held]:
        """Make keys pending for this attempt, except those that another attempt holds or has finished.

        A pending claim is taken over when its lease has ended by the store's clock, its run is ABORTED, or it is of
        this run under an older epoch (its driver is dead). May be repeated.

        Args:
            ref: the run; the store inserts and takes over only while it is OPEN and its epoch is the newest.
            attempt: 16 bytes, different for each attempt of each task.
            hashes: of the keys, all different.
            lease_s: seconds until other attempts may take the keys over, unless `renew_claims` is called.

        Returns:
            An answer for each hash, aligned.

        Raises:
            RunFencedError: the run was aborted, or another driver has taken it over.
            RunInputChangedError: the run is PREPARED or COMMITTED, and a key was never claimed.
            StoreReplacedError: the store does not know the run.
            ConfigurationError: mode dedup has claimed a key of this consumer.
        """
        holder = Holder(ref.token, ref.epoch, _checked_attempt(attempt), _lease_us(lease_s))
        pending = [key_hash for key_hash, _ in checked(hashes, [None] * len(hashes))]
        answers: dict[bytes, Held] = {}
        for _ in range(_ROUNDS):
            unanswered: list[bytes] = []
            for part in in_parts(pending):
                unanswered += self._acquire_part(holder, part, answers)
            if not unanswered:
                return [answers[key_hash] for key_hash in hashes]
            pending = sorted(unanswered)
            require_open(ref, self.standing_of([ref.token])[ref.token], self.where)
        raise StoreBusyError(
            f"{len(pending)} keys of {ref} changed their holders in each of {_ROUNDS} rounds. Try again"
        )

    def finish(
        self, ref: RunRef, attempt: bytes, finished: Iterable[tuple[bytes, bytes | None]]
    ) -> set[bytes]:
        """PENDING -> DONE with the handler's result, by a compare-and-set on the attempt. May be repeated.

        Args:
            ref: the run.
            attempt: that acquired the keys.
            finished: (hash, result or None), all hashes different.

        Returns:
            The hashes that this attempt still held. Other attempts have taken over the rest: their effect may have
            happened twice, and this attempt's result is not recorded.
        """
        del ref  # the attempt is of one run only
        mine: set[bytes] = set()
        for part in _in_packets(sorted(finished)):
            mine |= self._finish(_checked_attempt(attempt), part)
        return mine

    def renew_claims(self, attempt: bytes, hashes: Iterable[bytes], lease_s: float) -> set[bytes]:
        """Let the leases of pending claims end `lease_s` seconds from now; the hashes that this attempt still holds."""
        mine: set[bytes] = set()
        for part in in_parts(sorted(hashes)):
            mine |= self._renew_pending(_checked_attempt(attempt), part, _lease_us(lease_s))
        return mine

    def give_up(self, attempt: bytes, hashes: Iterable[bytes]) -> None:
        """Delete pending claims of this attempt, so that a retry may handle the keys. Finished claims stay."""
        for part in in_parts(sorted(hashes)):
            self._give_up(_checked_attempt(attempt), part)

    def _acquire_part(
        self, holder: Holder, hashes: Sequence[bytes], answers: dict[bytes, Held]
    ) -> list[bytes]:
        """Add the answers that are known; the hashes to ask for again."""
        rows = self._insert_pending(holder, hashes)
        others = {row.token for row in rows.values() if _is_held(row, holder)}
        aborted = {token for token, state in self.state_of(others).items() if state is RunState.ABORTED}
        free: list[PendingRow] = []
        for key_hash, row in rows.items():
            if _is_held(row, holder) and _may_take_over(row, holder, aborted):
                free.append(row)
            else:
                answers[key_hash] = _answer(row, holder)
        taken = self._take_over(holder, free) if free else set()
        for row in free:
            if row.key_hash in taken:
                answers[row.key_hash] = Held(Hold.MINE, holder.token, holder.attempt)
        return [key_hash for key_hash in hashes if key_hash not in answers]

    @abstractmethod
    def _insert_pending(self, holder: Holder, hashes: Sequence[bytes]) -> dict[bytes, PendingRow]:
        """Insert pending claims of keys without a claim, iff the run is OPEN at the epoch. The rows of all."""

    @abstractmethod
    def _take_over(self, holder: Holder, seen: Sequence[PendingRow]) -> set[bytes]:
        """Make pending claims the holder's, iff they are as seen, and the run is OPEN at the epoch; all that it has."""

    @abstractmethod
    def _finish(self, attempt: bytes, results: Sequence[tuple[bytes, bytes | None]]) -> set[bytes]:
        """Make claims of the attempt DONE, with their results; the hashes that it held."""

    @abstractmethod
    def _renew_pending(self, attempt: bytes, hashes: Sequence[bytes], lease_us: int) -> set[bytes]:
        """Renew pending claims of the attempt; the hashes that it holds."""

    @abstractmethod
    def _give_up(self, attempt: bytes, hashes: Sequence[bytes]) -> None:
        """Delete pending claims of the attempt."""


def _in_packets(
    results: Sequence[tuple[bytes, bytes | None]],
) -> Iterator[Sequence[tuple[bytes, bytes | None]]]:
    """The results in slices for one statement each: a packet of MySQL has at most 16 MB."""
    for part in in_parts(results):
        start, size = 0, 0
        for at, (_, result) in enumerate(part):
            size += len(result or b"")
            if size > _PACKET_BYTES and at > start:
                yield part[start:at]
                start, size = at, len(result or b"")
        yield part[start:]


def _is_held(row: PendingRow, holder: Holder) -> bool:
    return row.state is ClaimState.PENDING and row.attempt != holder.attempt


def _may_take_over(row: PendingRow, holder: Holder, aborted: set[int]) -> bool:
    """Whether the holder may take a pending claim over. The change requires that the claim is still as in `row`."""
    older = row.token == holder.token and row.epoch < holder.epoch
    return older or row.lease_until_us < row.now_us or row.token in aborted


def _answer(row: PendingRow, holder: Holder) -> Held:
    if row.state is ClaimState.OWNED:
        raise ConfigurationError(
            "a key is claimed in mode dedup and now in mode replay or effect: give each mode its own consumer"
        )
    if row.state is ClaimState.DONE:
        return Held(Hold.DONE, row.token, row.attempt, result=row.result)
    if row.attempt == holder.attempt:
        return Held(Hold.MINE, row.token, row.attempt)
    rest_s = (row.lease_until_us - row.now_us) / MICROSECONDS
    return Held(Hold.HELD, row.token, row.attempt, lease_rest_s=rest_s)


def _checked_attempt(attempt: bytes) -> bytes:
    if len(attempt) != ATTEMPT_BYTES:
        raise ValueError(f"an attempt has {ATTEMPT_BYTES} bytes")
    return attempt


def _lease_us(lease_s: float) -> int:
    if not lease_s > 0:
        raise ConfigurationError(f"lease_s must be a positive number of seconds, not {lease_s!r}")
    return max(int(lease_s * MICROSECONDS), 1)
