"""HandlerClaims: the keys that one attempt of a task handles, in the modes replay and effect."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from idempotent.adapters.spark.ledger.claims import (
    ATTEMPT_BYTES,
    ClaimState,
    Holder,
    PendingRow,
    check,
    in_parts,
    mixed_modes,
)
from idempotent.adapters.spark.ledger.ledger import RunLedger
from idempotent.adapters.spark.ledger.refusals import require_open
from idempotent.adapters.spark.ledger.runs import RunRef, RunState, microseconds
from idempotent.errors import StoreBusyError

_ROUNDS: Final = 20
_PACKET_BYTES: Final = 4_000_000


class HandlerClaims:
    """The claims of one attempt of a task: PENDING while a handler runs, and DONE after it, even if the run is aborted.

    Args:
        ledger: of the run.
        ref: the run. The store inserts and takes over only while it is OPEN and its epoch is the newest.
        lease_s: seconds until other attempts may take the keys over, unless `renew` is called.
        attempt: 16 bytes, different for each attempt of each task; None: random ones.
        state: of new claims; DONE in the transaction of the effect, where they count once that commits.
    """

    def __init__(
        self,
        ledger: RunLedger,
        ref: RunRef,
        lease_s: float,
        attempt: bytes | None = None,
        state: ClaimState = ClaimState.PENDING,
    ) -> None:
        """Send nothing to the store yet."""
        self._ledger = ledger
        self._store = ledger.store
        self._ref = ref
        # Random: Spark uses its stage, partition and attempt numbers again in other jobs.
        attempt = attempt or secrets.token_bytes(ATTEMPT_BYTES)
        self.holder: Final = Holder(ref.token, ref.epoch, attempt, microseconds(lease_s), state)

    def acquire(self, hashes: Sequence[bytes]) -> dict[bytes, PendingRow]:
        """Make keys pending for this attempt, except those that another attempt holds or has finished; their claims.

        A pending claim is taken over when its lease has ended by the store's clock, its run is ABORTED, or it is of
        this run under an older epoch (its driver is dead). May be repeated.

        Args:
            hashes: of the keys, all different. The answers are in their order.

        Raises:
            RunFencedError, StoreReplacedError: as `RunLedger.renew`.
            RunInputChangedError: the run is PREPARED or COMMITTED, and a key was never claimed.
            ConfigurationError: mode dedup has claimed a key of this consumer.
        """
        check(hashes, None)
        pending = sorted(hashes)
        answers: dict[bytes, PendingRow] = {}
        for _ in range(_ROUNDS):
            for part in in_parts(pending):
                answers |= self._acquire_part(part)
            pending = [key_hash for key_hash in pending if key_hash not in answers]
            if not pending:
                return {key_hash: answers[key_hash] for key_hash in hashes}
            require_open(self._ref, self._ledger.row(self._ref.token), self._ledger.store.where)
        raise StoreBusyError(
            f"{len(pending)} keys of {self._ref} changed their holders in each of {_ROUNDS} rounds. Try again"
        )

    def finish(self, finished: Iterable[tuple[bytes, bytes | None]]) -> set[bytes]:
        """PENDING -> DONE with the handler's result, by a compare-and-set on the attempt. May be repeated.

        Args:
            finished: (hash, result or None), all hashes different.

        Returns:
            The hashes that this attempt still held. Other attempts have taken over the rest: their effect may have
            happened twice, and this attempt's result is not recorded.
        """
        mine: set[bytes] = set()
        for part in _in_packets(sorted(finished)):
            mine |= self._store.finish(self.holder, part)
        return mine

    def renew(self, hashes: Iterable[bytes]) -> set[bytes]:
        """Let the leases of pending claims begin again now; the hashes that this attempt still holds."""
        mine: set[bytes] = set()
        for part in in_parts(sorted(hashes)):
            mine |= self._store.renew_pending(self.holder, part)
        return mine

    def give_up(self, hashes: Iterable[bytes]) -> None:
        """Delete pending claims of this attempt, so that a retry may handle the keys. Finished claims stay."""
        for part in in_parts(sorted(hashes)):
            self._store.give_up(self.holder, part)

    def _acquire_part(self, hashes: Sequence[bytes]) -> dict[bytes, PendingRow]:
        """The answers that are known; the other keys have to be asked for again."""
        holder = self.holder
        rows = self._store.insert_pending(holder, hashes)
        others = {row.token for row in rows.values() if row.is_held(holder)}
        runs = self._ledger.rows(others)
        aborted = {token for token, run in runs.items() if run.state is RunState.ABORTED}
        if any(row.state is ClaimState.OWNED for row in rows.values()):
            raise mixed_modes("dedup", "replay or effect")
        free = {row.key_hash: row for row in rows.values() if row.may_pass_to(holder, aborted)}
        taken = self._store.take_over(holder, [*free.values()]) if free else set()
        answers = {key_hash: row for key_hash, row in rows.items() if key_hash not in free}
        return answers | {key_hash: free[key_hash].passed_to(holder) for key_hash in taken}


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
