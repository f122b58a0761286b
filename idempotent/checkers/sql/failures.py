"""FailureTable: attempts and last errors of keys; and, under the key that `noted` gives, starts without an end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from idempotent.claims import DIED_ERROR, Claim, Failure, Released
from idempotent.keys import Key
from idempotent.schema import failures_name
from idempotent.stores.sql.cursor import DriverConnection, execute, query
from idempotent.stores.sql.dialects import MAX_ROWS, SqlDialect

_COMPLEMENT: Final = bytes(range(255, -1, -1))


@dataclass(slots=True)
class FailedAttempt:
    """An attempt to count. It is counted once, even if the transaction is repeated because its answer was lost.

    Attributes:
        claim: the claim of a key.
        failure: why it failed.
        attempts: the key's attempts with this one, as the last try left them.
        noted_us: when the last try noted it, in microseconds of the store's clock; -1: not tried yet. A try that was
            rolled back has left no such time, although another delivery may have reached the same number meanwhile.
    """

    claim: Claim
    failure: Failure
    attempts: int = 0
    noted_us: int = -1

    @property
    def released(self) -> Released:
        """The answer when it is counted."""
        return Released(owned=True, attempts=self.attempts, dead=self.failure.kills(self.attempts))


def noted(key: Key) -> Key:
    """Where the start of a key's run is noted: in a row of its own, beside that of its failures."""
    return Key(key.hash.translate(_COMPLEMENT), key.text)


class FailureTable:
    """The table `<table>_failures`.

    Args:
        dialect: the properties of the database.
        table: validated name of the key table to which the failures belong.
        retention_us: how long a failure is remembered after the last one, in microseconds.
    """

    def __init__(self, dialect: SqlDialect, table: str, retention_us: int) -> None:
        name = dialect.located(failures_name(table))
        now, text = dialect.now_us, dialect.markers
        self._insert = (
            f"INSERT INTO {name} (key_hash, k, last_error, attempts, update_at, expires_at) VALUES "
        )
        self._row = f"(?, ?, ?, {{attempts}}, {now}, {now} + {retention_us})"
        expiry = f"expires_at = {now} + {retention_us}"
        stored = "" if dialect.name == "mysql" else f"{name}."
        # The time that an earlier try of the same transaction noted: it has committed, and its answer was lost.
        earlier = f"CASE WHEN {stored}update_at = ? THEN"
        more = f"{earlier} 0 ELSE ? END"
        when = f"{earlier} {stored}update_at ELSE {now} END"
        upsert = dialect.if_stored(
            f"attempts = {stored}attempts + {more}, last_error = ?, update_at = {when}, {expiry}"
        )
        self._upsert = text(f"{self._insert}{self._row.format(attempts='?')} {upsert}")
        self._start_again = dialect.if_stored(f"attempts = {{attempts}}, update_at = {now}, {expiry}")
        self._end_starts = f"DELETE FROM {name} WHERE key_hash IN "
        self._undo_first = f"DELETE FROM {name} WHERE attempts = 1 AND key_hash IN "
        self._undo_starts = f"UPDATE {name} SET attempts = {{0}} WHERE attempts = {{1}} AND key_hash IN "
        self._counts = f"SELECT key_hash, attempts FROM {name} WHERE key_hash IN "
        self._last = text(f"SELECT attempts, update_at FROM {name} WHERE key_hash = ?")
        self._reason = text(f"SELECT {dialect.in_utf8('last_error')} FROM {name} WHERE key_hash = ?")
        # The failures of a stored key are kept with it: a DEAD key waits for a person, who needs its last error.
        self._expired = text(
            f"SELECT f.key_hash FROM {name} f LEFT JOIN {dialect.located(table)} t ON t.key_hash = f.key_hash"
            f" WHERE f.expires_at < {now} AND t.key_hash IS NULL LIMIT ?"
        )
        self._delete_old = f"DELETE FROM {name} WHERE update_at < ? AND key_hash IN "
        self._delete = f"DELETE FROM {name} WHERE expires_at < {now} AND key_hash IN "
        self._dialect = dialect

    def count(self, connection: DriverConnection, failed: FailedAttempt, *, more: int = 1) -> None:
        """Add `more` to a key's attempts, and keep the error."""
        self._keep(connection, failed.claim.key, more, failed.failure.error, failed.noted_us)
        failed.attempts, failed.noted_us = self.last(connection, failed.claim.key)

    def note_starts(
        self,
        connection: DriverConnection,
        keys: Sequence[Key],
        *,
        deaths: dict[bytes, int],
        unless_died: Collection[bytes],
    ) -> None:
        """Note that runs of these keys start: each key has a row with the number of starts since the last end.

        Args:
            connection: a driver connection in autocommit.
            keys: the keys.
            deaths: gets the number of earlier starts without an end of each key, by its hash. What stands there was
                read by a try whose answer was lost: the start that is stored by now may be its own.
            unless_died: the hashes of keys whose start is not noted if an earlier one had no end.
        """
        in_order = sorted(keys, key=lambda key: key.hash)
        for first in range(0, len(in_order), MAX_ROWS):
            part = in_order[first : first + MAX_ROWS]
            new = {key.hash: noted(key) for key in part if key.hash not in deaths}
            if new:
                found = self.attempts_of(connection, list(new.values()))
                deaths |= {hashed: found.get(start.hash, 0) for hashed, start in new.items()}
            again: dict[int, list[Key]] = {}
            for key in part:
                if not deaths[key.hash] or key.hash not in unless_died:
                    again.setdefault(deaths[key.hash], []).append(key)
            for starts, some in again.items():
                self._note(connection, some, starts + 1)

    def _note(self, connection: DriverConnection, keys: Sequence[Key], starts: int) -> None:
        params: list[Any] = []
        for key in keys:
            params += (noted(key).hash, *self._storable(connection, key.text, DIED_ERROR))
        rows = ", ".join([self._row] * len(keys))
        statement = f"{self._insert}{rows} {self._start_again}".format(attempts=starts)
        execute(connection, self._dialect.markers(statement), params, many=True)

    def end_starts(self, connection: DriverConnection, keys: Iterable[Key]) -> None:
        """Forget the starts of these keys: a run of them has ended."""
        hashes = sorted(noted(key).hash for key in keys)
        for first in range(0, len(hashes), MAX_ROWS):
            execute(connection, *self._of(self._end_starts, hashes[first : first + MAX_ROWS]), many=True)

    def undo_starts(self, connection: DriverConnection, deaths: Mapping[Key, int]) -> None:
        """Forget one start of each of these keys, before which there were so many without an end."""
        before: dict[int, list[bytes]] = {}
        for key, died in deaths.items():
            before.setdefault(died, []).append(noted(key).hash)
        for died, hashes in before.items():
            change = self._undo_starts if died else self._undo_first
            for first in range(0, len(hashes), MAX_ROWS):
                part = sorted(hashes[first : first + MAX_ROWS])
                execute(connection, *self._of(change.format(died, died + 1), part), many=True)

    def _of(self, statement: str, hashes: Sequence[bytes], *first: Any) -> tuple[str, Sequence[Any]]:
        return self._dialect.markers(f"{statement}({', '.join('?' * len(hashes))})"), (*first, *hashes)

    def explain(self, connection: DriverConnection, key: Key, error: str) -> int:
        """Keep an error without counting an attempt. Returns the attempts so far."""
        self._keep(connection, key, 0, error, -1)
        return self.last(connection, key)[0]

    def _keep(self, connection: DriverConnection, key: Key, more: int, error: str, noted_us: int) -> None:
        text, error = self._storable(connection, key.text, error)
        params = (key.hash, text, error, more, noted_us, more, error, noted_us)
        execute(connection, self._upsert, params)

    def _storable(self, connection: DriverConnection, *texts: str) -> list[str]:
        return [self._dialect.storable(connection, each) for each in texts]

    def attempts_of(self, connection: DriverConnection, keys: Sequence[Key]) -> dict[bytes, int]:
        """The attempts of up to 1,000 keys so far, by hash; a key without a failure is left out."""
        hashes = [key.hash for key in keys]
        rows = query(connection, *self._of(self._counts, hashes), many=len(hashes) > 1)
        return {bytes(hashed): int(attempts) for hashed, attempts in rows}

    def last(self, connection: DriverConnection, key: Key) -> tuple[int, int]:
        """The attempts of a key so far, and when the last failure was noted, in microseconds; 0, 0: none."""
        rows = query(connection, self._last, (key.hash,))
        return (int(rows[0][0]), int(rows[0][1])) if rows else (0, 0)

    def reason(self, connection: DriverConnection, key: Key) -> str | None:
        """The last error of a key, if any."""
        rows = query(connection, self._reason, (key.hash,))
        return bytes(rows[0][0]).decode("utf-8", "replace") if rows else None

    def delete(self, connection: DriverConnection, hashes: Sequence[bytes], *, before_us: int) -> None:
        """Forget the failures of deleted keys, unless one was noted since that time: its key was claimed again."""
        execute(connection, *self._of(self._delete_old, hashes, before_us), many=True)

    def delete_expired(self, connection: DriverConnection, batch_size: int) -> None:
        """Delete all expired failures of keys that are not stored: found without locks, deleted by primary key."""
        size = min(batch_size, MAX_ROWS)
        while found := sorted(bytes(row[0]) for row in query(connection, self._expired, (size,))):
            execute(connection, *self._of(self._delete, found))
            if len(found) < size:
                return
