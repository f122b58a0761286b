"""Handlers: the modes effect and replay, which let one attempt at a time handle a key."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import pyarrow as pa

from idempotent.adapters.spark.ledger.claims import ATTEMPT_BYTES, Held, Hold
from idempotent.adapters.spark.ledger.run_claims import RowVerdict
from idempotent.adapters.spark.ledger.waits import Patience
from idempotent.adapters.spark.tasks.handle import RunHandle
from idempotent.adapters.spark.tasks.ledgers import check_store, ledger_for, refuse_another_batch
from idempotent.adapters.spark.tasks.row_keys import RowKeys, first_of_each
from idempotent.checkers.repeating import RepeatingThread
from idempotent.errors import ConfigurationError, RunConflictError, StoreError
from idempotent.logs import EventLog

log = EventLog(__name__)

R = TypeVar("R")
_MAX_POLL_S: Final = 1.0
_TIMES_A_LEASE: Final = 3
_MAX_RESULT_BYTES: Final = 64 * 1024


class Handlers:
    """Runs handlers for the keys of one partition.

    While another attempt holds a key, this one waits: until the other has finished it, or the other's lease ends and
    the key is handled here. A skipped key would be lost if the other attempt dies.

    Args:
        handle: the run.
    """

    def __init__(self, handle: RunHandle) -> None:
        """Check that the store knows the run."""
        self._handle = handle
        self._ledger = ledger_for(handle.store)
        # Random: Spark uses its stage, partition and attempt numbers again in other jobs.
        self._attempt = secrets.token_bytes(ATTEMPT_BYTES)
        check_store(self._ledger, handle)

    def run(self, rows: Mapping[bytes, R], handler: Callable[[R], bytes | None]) -> dict[bytes, bytes | None]:
        """The results of all keys: the handler's, or what an earlier attempt stored.

        Args:
            rows: one chunk, by key hash.
            handler: returns the result to store, or None.

        Raises:
            RunConflictError: a key was held for longer than the run waits.
            RunError, StoreError: see RunLedger.acquire.
            Exception: the handler's own. Its key, and those not yet handled, are free for Spark's retry.
        """
        results: dict[bytes, bytes | None] = {}
        pending, patience, handled = list(rows), Patience(self._handle.wait_s), 0
        while pending:
            answers = self._ledger.acquire(self._handle.ref, self._attempt, pending, self._handle.lease_s)
            by_hash = dict(zip(pending, answers, strict=True))
            results.update({each: held.result for each, held in by_hash.items() if held.hold is Hold.DONE})
            mine = [each for each, held in by_hash.items() if held.hold is Hold.MINE]
            if mine:
                finished = self._handle_mine({each: rows[each] for each in mine}, handler)
                results.update(finished)
                handled += len(finished)
            pending = [each for each in rows if each not in results]
            theirs = {each: answer for each, answer in by_hash.items() if answer.hold is Hold.HELD}
            if pending and theirs:
                self._wait(patience, theirs)
        if self._handle.counters is not None:
            self._handle.counters.add({RowVerdict.NEW: handled, RowVerdict.DUPLICATE: len(rows) - handled})
        return results

    def _handle_mine(
        self, rows: Mapping[bytes, R], handler: Callable[[R], bytes | None]
    ) -> dict[bytes, bytes | None]:
        """The results of the keys finished here; other attempts may have taken over the rest."""
        results: dict[bytes, bytes | None] = {}
        with _Renewal(self._renew, set(rows), self._handle.lease_s) as renewal:
            try:
                for key_hash, row in rows.items():
                    # Another attempt may have taken the key over.
                    if not renewal.holds(key_hash):
                        continue
                    result = handler(row)
                    if self._ledger.finish(self._attempt, [(key_hash, result)]):
                        results[key_hash] = result
                    renewal.forget(key_hash)
            except BaseException:
                renewal.stop()
                # If this fails too their leases end in time; the handler's error is the one to report.
                with suppress(StoreError):
                    self._ledger.give_up(self._attempt, renewal.outstanding)
                raise
        return results

    def _renew(self, hashes: set[bytes]) -> set[bytes]:
        return self._ledger.renew_claims(self._attempt, hashes, self._handle.lease_s)

    def _wait(self, patience: Patience, held: Mapping[bytes, Held]) -> None:
        """Wait for the keys that other attempts hold."""
        ref, first = self._handle.ref, min(held)
        # As long as the others get on, the first key that they hold is another one.
        patience.share(self._ledger.store, ref, [b"key " + held[first].attempt + first])
        rest_s = min(each.lease_rest_s for each in held.values())

        def reason() -> str:
            ends = f"a lease ends in {rest_s:.1f} s unless it is renewed"
            return f"{len(held)} keys that other attempts hold; {ends}"

        if not patience.wait(ref, reason, min(max(rest_s, 0.05), _MAX_POLL_S)):
            raise RunConflictError(
                f"{len(held)} keys of {ref} are held by other attempts for more than "
                f"{self._handle.wait_s:g} s: their handlers take longer than wait_s, or their processes died and their "
                "leases have not ended"
            )


class _Renewal:
    """Renews the leases of keys that were just acquired, three times a lease, and knows which keys were lost.

    Args:
        renew: renews these keys; returns those that this attempt still holds.
        hashes: of the keys.
        lease_s: seconds of one lease.
    """

    def __init__(self, renew: Callable[[set[bytes]], set[bytes]], hashes: set[bytes], lease_s: float) -> None:
        """Count from now: the leases have just begun."""
        self._renew_keys = renew
        self._hashes = hashes
        self._lease_s = lease_s
        self._safe_until = time.monotonic() + lease_s - lease_s / _TIMES_A_LEASE
        self._lock = threading.Lock()
        self._thread = RepeatingThread(self._renew_or_say, "idempotent-renewal", lease_s / _TIMES_A_LEASE)

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the thread."""
        self.stop()

    @property
    def outstanding(self) -> set[bytes]:
        """Keys that this attempt holds and has not forgotten."""
        return set(self._hashes)

    def holds(self, key_hash: bytes) -> bool:
        """Whether this attempt holds the key for at least a third of a lease from now; asks the store when in doubt.

        Raises:
            StoreError: the store did not answer.
        """
        if time.monotonic() > self._safe_until:
            self._renew()
        return key_hash in self._hashes

    def forget(self, key_hash: bytes) -> None:
        """Stop renewing the lease of one key."""
        with self._lock:
            self._hashes.discard(key_hash)

    def stop(self) -> None:
        """Stop renewing, and wait for the thread."""
        self._thread.stop(None)

    def _renew_or_say(self) -> None:
        try:
            self._renew()
        except StoreError as error:
            # The next renewal may succeed; until then `holds` asks the store.
            log.warning("claims_not_renewed", extra={"error": str(error)})

    def _renew(self) -> None:
        with self._lock:
            if not self._hashes:
                return
            asked = time.monotonic()
            self._hashes &= self._renew_keys(set(self._hashes))
            self._safe_until = asked + self._lease_s - self._lease_s / _TIMES_A_LEASE


class BatchReplay:
    """For `mapInArrow`: the handler's result for a new key, the stored result for a known one. Picklable."""

    def __init__(
        self,
        handle: RunHandle,
        keys: RowKeys,
        handler: Callable[[dict[str, Any]], Mapping[str, Any]],
        schema: pa.Schema,
    ) -> None:
        """Connect only when called."""
        self._handle = handle
        self._keys = keys
        self._handler = handler
        self._schema = schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Map one partition."""
        # A run, and with it the stored results, would be as old as the stream, and in time older than their retention.
        refuse_another_batch(self._handle)
        handlers = Handlers(self._handle)
        for batch in batches:
            hashes = self._keys.of_batch(batch)
            rows = first_of_each(hashes, batch.to_pylist())
            results: dict[bytes, bytes | None] = {}
            for part in self._handle.chunks(rows.items()):
                results |= handlers.run(dict(part), self._call)
            yield self._as_batch([results[each] for each in hashes])

    def _call(self, row: dict[str, Any]) -> bytes:
        data = _encoded(self._handler(row))
        # Checked before the key is done: a stored result that fits no row would fail every later evaluation.
        self._as_batch([data])
        return data

    def _as_batch(self, results: Sequence[bytes | None]) -> pa.RecordBatch:
        rows = [json.loads(result or b"null") for result in results]
        names = set(self._schema.names)
        for row in rows:
            if not isinstance(row, dict) or not names.issuperset(row):
                raise ConfigurationError(
                    f"a result does not fit the schema: {row!r:.200}; return a dict whose names are among "
                    f"{', '.join(self._schema.names)}"
                )
        try:
            return pa.RecordBatch.from_pylist(rows, schema=self._schema)
        except pa.ArrowException as error:
            raise ConfigurationError(f"a result does not fit the schema: {error}") from error


def _encoded(result: Any) -> bytes:
    """A handler's result as the store keeps it.

    Raises:
        ConfigurationError: the result is not JSON, or longer than 64 KB.
    """
    try:
        data = json.dumps(result, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"a result that is replayed must be JSON: {error}") from error
    if len(data) > _MAX_RESULT_BYTES:
        raise ConfigurationError(
            f"a result of {len(data)} bytes; {_MAX_RESULT_BYTES} is the most: store it elsewhere and return where"
        )
    return data
