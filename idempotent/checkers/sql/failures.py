"""FailureTable: attempts and the last error of keys that failed. Written only on failure."""

from __future__ import annotations

from idempotent.claims import Claim
from idempotent.keys import Key
from idempotent.schema import failures_name
from idempotent.stores.sql.cursor import DriverConnection, execute, query
from idempotent.stores.sql.dialects import SqlDialect


class FailureTable:
    """The table `<table>_failures`.

    Args:
        dialect: the properties of the database.
        table: validated name of the key table to which the failures belong.
        retention_us: how long a failure is remembered after the last one, in microseconds.
    """

    def __init__(self, dialect: SqlDialect, table: str, retention_us: int) -> None:
        name = failures_name(table)
        now, text = dialect.now_us, dialect.markers
        insert = (
            f"INSERT INTO {name} (update_at, key_hash, k, attempts, last_error, expires_at)"
            f" VALUES ({now}, ?, ?, ?, ?, {now} + {retention_us})"
        )
        changes = f"update_at = {now}, expires_at = {now} + {retention_us}"
        if dialect.name == "mysql":
            upsert = f"{insert} ON DUPLICATE KEY UPDATE attempts = attempts + ?, last_error = ?, {changes}"
        else:
            upsert = (
                f"{insert} ON CONFLICT (key_hash) DO UPDATE SET"
                f" attempts = {name}.attempts + ?, last_error = ?, {changes}"
            )
        self._upsert = text(upsert)
        self._attempts = text(f"SELECT attempts FROM {name} WHERE key_hash = ?")
        self._reason = text(f"SELECT last_error FROM {name} WHERE key_hash = ?")
        self._expired = text(f"SELECT key_hash FROM {name} WHERE expires_at < {now} LIMIT ?")
        self._delete = f"DELETE FROM {name} WHERE expires_at < {now} AND key_hash IN "
        self._dialect = dialect

    def note(self, connection: DriverConnection, claim: Claim, error: str, *, attempts: int = 1) -> int:
        """Add to a key's attempts and keep the error. Returns all attempts so far."""
        assert claim.key is not None
        params = (claim.key.hash, claim.key.text, attempts, error, attempts, error)
        execute(connection, self._upsert, params)
        return int(query(connection, self._attempts, (claim.key.hash,))[0][0])

    def reason(self, connection: DriverConnection, key: Key) -> str | None:
        """The last error of a key, if any."""
        rows = query(connection, self._reason, (key.hash,))
        return str(rows[0][0]) if rows else None

    def delete_expired(self, connection: DriverConnection, batch_size: int) -> None:
        """Delete all failures past their expiry: found without locks, deleted by primary key, batch by batch."""
        while found := sorted(bytes(row[0]) for row in query(connection, self._expired, (batch_size,))):
            markers = ", ".join("?" * len(found))
            execute(connection, self._dialect.markers(f"{self._delete}({markers})"), found)
            if len(found) < batch_size:
                return
