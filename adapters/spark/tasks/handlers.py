"""Handlers: the modes effect and replay, which let one attempt at a time handle a key."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self, cast

import pyarrow as pa

from idempotent.adapters.spark.ledger.claims import ClaimState, PendingRow
from idempotent.adapters.spark.ledger.handler_claims import HandlerClaims
from idempotent.adapters.spark.ledger.ledger import RunLedger
from idempotent.adapters.spark.ledger.refusals import command, require_alive
from idempotent.adapters.spark.ledger.run_claims import RowVerdict
from idempotent.adapters.spark.ledger.waits import Patience
from idempotent.adapters.spark.tasks.handle import RunHandle
from idempotent.adapters.spark.tasks.ledgers import ledger_for, refuse_another_batch
from idempotent.adapters.spark.tasks.row_keys import RowKeys, first_of_each
from idempotent.checkers.repeating import RepeatingThread
from idempotent.errors import ConfigurationError, RunConflictError, StoreBusyError, StoreError
from idempotent.logs import EventLog

if TYPE_CHECKING:
    from idempotent.adapters.spark.ledger.sql import SqlRunStore
    from idempotent.adapters.spark.ledger.store import RunStore

log = EventLog(__name__)

_MAX_POLL_S: Final = 1.0
_QUIET_S: Final = 10.0
_TIMES_A_LEASE: Final = 3
_MAX_RESULT_BYTES: Final = 64 * 1024
# In the place of a claim that a transaction has made, and not committed.
_LOCKED: Final = PendingRow(b"", ClaimState.PENDING, 0, 0, b"", 0, None, 0)


class Handlers:
    """Runs handlers for the keys of one partition, a batch of them at a time.

    While another attempt holds a key, this one waits: until the other has finished it, or the other's lease ends and
    the key is handled here. A skipped key would be lost if the other attempt dies. The rest does not wait for it.

    Args:
        handle: the run.
        handler: takes the rows of a batch; returns the results to store, aligned, each bytes or None.
    """

    def __init__(self, handle: RunHandle, handler: Callable[..., Sequence[bytes | None]]) -> None:
        """Check that the store knows the run."""
        self._handle = handle
        self._handler = handler
        self._ledger = ledger_for(handle.store)
        self._claims = HandlerClaims(self._ledger, handle.ref, handle.lease_s)
        require_alive(handle.ref, self._ledger.row(handle.ref.token), self._ledger.store.where, again=True)

    def run(self, hashes: Sequence[bytes], rows: Sequence[Any]) -> dict[bytes, bytes | None]:
        """The results of all keys: the handler's, or what an earlier attempt stored.

        Args:
            hashes: of the keys of one chunk. Of several rows with a key the first is handled.
            rows: aligned.

        Raises:
            RunConflictError: a key was held for longer than the run waits.
            RunError, StoreError: see HandlerClaims.acquire.
            Exception: the handler's own. The keys of its batch, and those not yet handled, are free for Spark's retry.
        """
        first = first_of_each(hashes, rows)
        results: dict[bytes, bytes | None] = {}
        pending, patience, handled = list(first), self._ledger.patience(self._handle.wait_s), 0
        while pending:
            holds, finished = self._take({each: first[each] for each in pending})
            results.update(
                {each: held.result for each, held in holds.items() if held.state is ClaimState.DONE}
            )
            results.update(finished)
            handled += len(finished)
            pending = [each for each in first if each not in results]
            theirs = {each: held for each, held in holds.items() if held.is_held(self._claims.holder)}
            if pending and theirs:
                self._wait(patience, theirs)
        if self._handle.counters is not None:
            self._handle.counters.add({RowVerdict.NEW: handled, RowVerdict.DUPLICATE: len(rows) - handled})
        return results

    def _take(self, rows: Mapping[bytes, Any]) -> tuple[dict[bytes, PendingRow], dict[bytes, bytes | None]]:
        """Acquire these keys, and handle those that this attempt has. The answers, and the results of keys handled."""
        holds = self._claims.acquire(list(rows))
        mine = {each: rows[each] for each, held in holds.items() if held.is_mine(self._claims.holder)}
        return holds, self._handle_mine(mine) if mine else {}

    def _handle_mine(self, rows: Mapping[bytes, Any]) -> dict[bytes, bytes | None]:
        """The results of the keys finished here; other attempts may have taken over the rest."""
        results: dict[bytes, bytes | None] = {}
        hashes, size = list(rows), self._handle.batch_size or 1
        with _Renewal(self._claims, set(hashes), self._handle.lease_s) as renewal:
            try:
                for start in range(0, len(hashes), size):
                    # Another attempt may have taken a key over.
                    batch = list(filter(renewal.holds, hashes[start : start + size]))
                    if not batch:
                        continue
                    found = dict(zip(batch, self._handler([rows[each] for each in batch]), strict=True))
                    finished = self._claims.finish(found.items())
                    results.update({each: found[each] for each in finished})
                    renewal.forget(batch)
            except BaseException:
                renewal.stop()
                # If this fails too their leases end in time; the handler's error is the one to report.
                with suppress(StoreError):
                    self._claims.give_up(renewal.outstanding)
                raise
        return results

    def _wait(self, patience: Patience, held: Mapping[bytes, PendingRow]) -> None:
        """Wait for the keys that other attempts hold."""
        ref, first = self._handle.ref, min(held)
        # As long as others get on, the first key that they hold is another one.
        with suppress(StoreBusyError):  # a transaction of SQLite's has the file: this try waits by itself
            patience.share(self._ledger.store, ref, [b"key " + held[first].attempt + first])
        rest_s = min(each.lease_rest_s for each in held.values())

        tokens = {each.token for each in held.values()}
        # Tasks that share a key are no trouble, and have it for the time of a handler.
        quiet_s = _QUIET_S if tokens == {ref.token} else 0.0

        def others() -> str:
            if not tokens - {_LOCKED.token}:
                return "an open transaction"
            runs = self._ledger.rows(tokens - {_LOCKED.token, ref.token})
            ours = ["other tasks of this run, or tries that died"] if ref.token in tokens else []
            names = ", ".join([*ours, *map(str, runs.values())])
            return f"{names}; a lease ends in {rest_s:.1f} s unless it is renewed"

        def reason() -> str:
            return f"{len(held)} keys that other attempts hold, of {others()}"

        if not patience.wait(ref, reason, min(max(rest_s, 0.05), _MAX_POLL_S), quiet_s=quiet_s):
            raise RunConflictError(
                f"{len(held)} keys of {ref} are held by other attempts for more than {self._handle.wait_s:g} s: their "
                "handlers take longer than wait_s, or their processes died and their leases have not ended. They are "
                f"of {others()}. Type: {command('show', ref)}"
            )


class TransactionalHandlers(Handlers):
    """The same in transactions of the ledger's database: a batch's claims commit together with what its handler writes.

    A claim is DONE at once, and counts when its transaction commits. So there are no leases: the claims of a process
    that dies are rolled back with its writes.
    """

    def _take(self, rows: Mapping[bytes, Any]) -> tuple[dict[bytes, PendingRow], dict[bytes, bytes | None]]:
        store = cast("SqlRunStore", self._ledger.store)  # others are refused on the driver

        def claim(within: RunStore) -> tuple[HandlerClaims, dict[bytes, PendingRow]]:
            # An attempt of its own for each transaction: in a later one the key is done, not this attempt's.
            ref, lease_s = self._handle.ref, self._handle.lease_s
            claims = HandlerClaims(RunLedger(within), ref, lease_s, state=ClaimState.DONE)
            return claims, claims.acquire(list(rows))

        try:
            (claims, holds), transaction = store.transaction(claim)
        except StoreBusyError:
            # Another transaction had a key, or on SQLite the file, for as long as the database waits for a lock.
            return dict.fromkeys(rows, _LOCKED), {}
        with transaction:
            mine = [each for each, held in holds.items() if held.is_mine(claims.holder)]
            if mine:
                try:
                    self._handler([rows[each] for each in mine], transaction.connection)
                    transaction.demand_claims(claims, mine)
                except BaseException:
                    transaction.close(reuse=False)
                    # A handler may have committed them in a way that is not seen: a retry would find its keys done.
                    with suppress(StoreError):
                        store.give_up(claims.holder, mine)
                    raise
                # Whether a COMMIT without an answer has succeeded is not asked: Spark's retry finds the claims, or not.
                transaction.commit()
        return holds, dict.fromkeys(mine)


class _Renewal:
    """Renews the leases of keys that were just acquired, three times a lease, and knows which keys were lost.

    Args:
        claims: of the keys.
        hashes: of the keys.
        lease_s: seconds of one lease.
    """

    def __init__(self, claims: HandlerClaims, hashes: set[bytes], lease_s: float) -> None:
        """Count from now: the leases have just begun."""
        self._claims = claims
        self._hashes = hashes
        self._lease_s = lease_s
        self._safe_until = time.monotonic() + lease_s - lease_s / _TIMES_A_LEASE
        self._lock = threading.Lock()
        self._thread = RepeatingThread(self._renew_or_say, "idempotent-renewal", lease_s / _TIMES_A_LEASE)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
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

    def forget(self, hashes: Iterable[bytes]) -> None:
        """Stop renewing the leases of these keys."""
        with self._lock:
            self._hashes.difference_update(hashes)

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
            self._hashes &= self._claims.renew(set(self._hashes))
            self._safe_until = asked + self._lease_s - self._lease_s / _TIMES_A_LEASE


class PartitionEffects:
    """For `foreachPartition` of RDDs and frames. Picklable."""

    def __init__(
        self, handle: RunHandle, keys: RowKeys, handler: Callable[..., object], kind: type[Handlers]
    ) -> None:
        """Connect only when called."""
        self._handle = handle
        self._keys = keys
        self._handler = handler
        self._kind = kind

    def __call__(self, rows: Iterable[Any]) -> None:
        """Handle one partition."""
        handlers = self._kind(self._handle, self._handled)
        for part in self._handle.chunks(rows):
            handlers.run(list(map(self._keys.of_row, part)), part)

    def _handled(self, rows: Sequence[Any], *connection: Any) -> list[None]:
        """Call the handler, and store none of what it returns."""
        self._handle.call(self._handler, rows, *connection)
        return [None] * len(rows)


class BatchReplay:
    """For `mapInArrow`: the handler's result for a new key, the stored result for a known one. Picklable."""

    def __init__(
        self, handle: RunHandle, keys: RowKeys, handler: Callable[[Any], Any], schema: pa.Schema
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
        handlers = Handlers(self._handle, self._handled)
        for batch in batches:
            hashes = self._keys.of_batch(batch)
            results: dict[bytes, bytes | None] = {}
            for part in self._handle.chunks(zip(hashes, batch.to_pylist(), strict=True)):
                results |= handlers.run([each for each, _ in part], [row for _, row in part])
            yield self._as_batch([results[each] for each in hashes])

    def _handled(self, rows: Sequence[dict[str, Any]]) -> list[bytes]:
        found = self._handle.call(self._handler, rows)
        if not isinstance(found, Sequence) or len(found) != len(rows):
            raise ConfigurationError(
                f"a handler with batch_size= returns a list, with a result for each of its {len(rows)} rows"
            )
        data = [_encoded(each) for each in found]
        # Checked before the keys are done: a stored result that fits no row would fail every later evaluation.
        self._as_batch(data)
        return data

    def _as_batch(self, results: Sequence[bytes | None]) -> pa.RecordBatch:
        rows = [json.loads(result or b"null") for result in results]
        names = set(self._schema.names)
        # An error has names and types, and no value: it is logged where others read it.
        for row in rows:
            if not isinstance(row, dict) or not names.issuperset(row):
                found = ", ".join(map(repr, row)) if isinstance(row, dict) else type(row).__name__
                raise ConfigurationError(
                    f"a result does not fit the schema: it has {found}; return a dict whose names are among "
                    f"{', '.join(self._schema.names)}"
                )
        try:
            return pa.RecordBatch.from_pylist(rows, schema=self._schema)
        except pa.ArrowException:
            found = ", ".join(sorted({f"{name} {type(row[name]).__name__}" for row in rows for name in row}))
            wanted = ", ".join(f"{field.name} {field.type}" for field in self._schema)
            raise ConfigurationError(
                f"a result does not fit the schema: it has {found}, not {wanted}"
            ) from None


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
