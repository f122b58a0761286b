"""The SQL text of the claim protocol, made once for each table and dialect.

`?` stands for the driver's marker. Constants (statuses, lease, retention) are part of the text; all values from a
message are parameters. Names of subqueries end in `$`, which the name of a table cannot have.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from idempotent.admin import NEVER_US
from idempotent.checkers.durations import Durations
from idempotent.claims import KeyStatus
from idempotent.stores.sql.dialects import Conflict, SqlDialect

IN_PROGRESS: Final = f"status < {KeyStatus.DONE:d}"
_SAVED_LIMIT: Final = "idempotent.lock_timeout"
# The statement itself restores lock_timeout, because the application may have set one for the handler's statements.
# The count forces PostgreSQL to finish all writes first. Without a written row the result is one row of NULLs.
# COALESCE: an UPDATE that finds no row may not have changed, and so not saved, the limit.
_PREVIOUS_LIMIT: Final = (
    f"COALESCE(NULLIF(current_setting('{_SAVED_LIMIT}', true), ''), current_setting('lock_timeout'))"
)
_RESTORE_LIMIT: Final = (
    f"SELECT i$.key_hash, i$.fence FROM (SELECT set_config('lock_timeout', {_PREVIOUS_LIMIT}, true)"
    " FROM (SELECT count(*) AS n FROM i$) AS a$ WHERE a$.n >= 0) AS r$ LEFT JOIN i$ ON true"
)
_BRIEF_S: Final = 1.0
ROW: Final = "key_hash, status, owner, fence, update_at, lease_until, fingerprint, result"


def expired_keys(now: str) -> str:
    """The condition of what gc deletes: never a key in progress of a consumer that parks, and never a live lease."""
    return (
        f"expires_at < {now} AND (status >= {KeyStatus.DONE:d} OR"
        f" (status <> {KeyStatus.IN_PROGRESS_PARK:d} AND lease_until < {now}))"
    )


class Statements:
    """The statements over one key table.

    Args:
        dialect: the properties of the database.
        table: validated name of the key table.
        durations: the lease of a claim, and how long keys are remembered.
        waits_briefly: changes of stored keys wait about a second for a row that another session has locked. The limit
            stays until the transaction ends, so this is for connections of the checker's own.
    """

    def __init__(
        self, dialect: SqlDialect, table: str, durations: Durations, *, waits_briefly: bool = False
    ) -> None:
        self._dialect = dialect
        self._limits = waits_briefly and dialect.name == "postgresql"  # elsewhere the connection has a limit
        self._table = table = dialect.located(table)
        self._durations = durations
        self._lease_us = durations.lease_us
        change = self._change
        now = dialect.now_us
        lapsed = f"{IN_PROGRESS} AND lease_until < {now}"
        mine = "key_hash = ? AND owner = ?"
        self._done = done(dialect, durations.retention_us)
        dead = f"status = {KeyStatus.DEAD:d}, expires_at = {self._expiry(KeyStatus.DEAD, now)}"
        self._mine_lapsed = f"{mine} AND {lapsed}"
        self.park: Final = change(f"{dead}, update_at = {now}", self._mine_lapsed)
        self.complete: Final = change(self._done, mine)
        self.complete_with_result: Final = change(f"{self._done}, result = ?", mine)
        # Else nothing writes `update_at` of a key in progress: its distance to the fence counts the deaths.
        self.lock_mine: Final = change(f"update_at = {now}", f"{mine} AND {IN_PROGRESS}")
        self.kill_mine: Final = change(f"{dead}, lease_until = NULL, update_at = {now}", mine)
        self.delete_mine: Final = self._delete(f"{mine} AND {IN_PROGRESS}")
        # Parameters: `NOBODY`, the backoff in microseconds, hash, owner.
        self.hold_mine: Final = change(
            f"status = {KeyStatus.IN_PROGRESS:d}, owner = ?, lease_until = {now} + ?, fingerprint = NULL,"
            f" update_at = {now}, expires_at = {self._expiry(KeyStatus.IN_PROGRESS, now)}",
            f"{mine} AND {IN_PROGRESS}",
        )
        self.hold: Final = dialect.markers(self._hold())
        self.forget_mine: Final = self._delete(mine)
        expired = expired_keys(now)
        self.expired: Final = dialect.markers(
            f"SELECT key_hash, {now} FROM {table} WHERE {expired} ORDER BY expires_at LIMIT ?"
        )
        self._is_expired = expired
        # Cached by batch size: most batches of a worker are full, so few sizes occur.
        self.take_over = lru_cache(maxsize=8)(self._take_over)
        self.insert = lru_cache(maxsize=64)(self._insert)
        self.read = lru_cache(maxsize=64)(self._read)
        self.complete_group = lru_cache(maxsize=64)(self._complete_group)
        self.renew = lru_cache(maxsize=64)(self._renew)
        self.delete_group = lru_cache(maxsize=64)(self._delete_group)
        self.delete_free = lru_cache(maxsize=64)(self._delete_free)
        self.owned = lru_cache(maxsize=64)(self._owned)
        self.delete_expired = lru_cache(maxsize=64)(self._delete_expired_keys)

    def _from_now(self, microseconds: int | None) -> str:
        return "NULL" if microseconds is None else f"{self._dialect.now_us} + {microseconds}"

    def _expiry(self, status: KeyStatus, now: str) -> str:
        if status is not KeyStatus.DEAD:
            return f"{now} + {self._durations.retention_us}"
        kept_us = self._durations.dead_retention_us
        return f"{NEVER_US}" if kept_us is None else f"{now} + {kept_us}"

    def _take_over(self, status: KeyStatus) -> str:
        """Become the owner of a lapsed key (see `stored_deaths`). Parameters: owner, fingerprint, hash, old owner."""
        now = self._dialect.now_us
        changed = "" if status.in_progress else f" update_at = {now},"
        return self._change(
            f"status = {status:d}, owner = ?, fence = fence + 1,{changed}"
            f" lease_until = {self._from_now(self._lease_us)}, fingerprint = ?,"
            f" expires_at = {self._expiry(status, now)}",
            self._mine_lapsed,
        )

    def _insert(self, rows: int, status: KeyStatus, wait_s: float | None, *, in_transaction: bool) -> str:
        """Insert rows of (key_hash, k, owner, fingerprint) where the key is free.

        Waits at most `wait_s` seconds for locks; None: in autocommit, about a second. `Conflict` documents what the
        statement returns.
        """
        into = (
            f"INSERT INTO {self._table}"
            " (fence, key_hash, k, status, owner, lease_until, fingerprint, update_at, expires_at)"
        )
        if self._dialect.conflict is Conflict.RETURNS_NEW:
            limit_s = _BRIEF_S if wait_s is None else wait_s
            return self._dialect.markers(
                self._insert_on_conflict(into, rows, status, limit_s, in_transaction=in_transaction)
            )
        first = others = self._dialect.now_us
        keep = f"{self._table}.key_hash"
        if self._dialect.conflict is Conflict.RETURNS_ALL:
            # The insert id of the answer is the common fence of all rows, or 0 if any key existed: no result set.
            others = "@idempotent_now"
            first = f"LAST_INSERT_ID({first if rows == 1 else f'{others} := {first}'})"
            keep = f"IF(LAST_INSERT_ID(0) = 0, {keep}, {keep})"
        # A column may refer to an earlier one of its row, so a row reads the clock at most once.
        lease = "NULL" if self._lease_us is None else f"fence + {self._lease_us}"
        row = f", ?, ?, {status:d}, ?, {lease}, ?, fence, {self._expiry(status, 'fence')})"
        values = ", ".join([f"({first}{row}", *[f"({others}{row}"] * (rows - 1)])
        insert = f"{into} VALUES {values} {self._dialect.if_stored(f'key_hash = {keep}')}"
        return self._dialect.markers(insert if wait_s is None else self._dialect.scoped(insert, wait_s))

    def _insert_on_conflict(
        self, into: str, rows: int, status: KeyStatus, wait_s: float, *, in_transaction: bool
    ) -> str:
        blob = self._dialect.blob
        lease = "CAST(NULL AS BIGINT)" if self._lease_us is None else f"c$.n + {self._lease_us}"
        values = ", ".join(["(?, ?, ?, ?)"] * rows)
        limit = ""
        if self._dialect.name == "postgresql":
            limit = _postgresql_limit(wait_s) if in_transaction else _statement_limit(wait_s)
        ctes = f"WITH v$(h, t, o, f) AS (VALUES {values}), c$(n) AS (SELECT {self._dialect.now_us}{limit})"
        insert = (
            f"{into} SELECT c$.n, CAST(v$.h AS {blob}), v$.t, {status:d}, CAST(v$.o AS {blob}), {lease},"
            f" CAST(v$.f AS {blob}), c$.n, {self._expiry(status, 'c$.n')}"
            f" FROM v$ CROSS JOIN c$ WHERE true {self._dialect.if_stored()} RETURNING key_hash, fence"
        )
        return (
            f"{ctes}, i$ AS ({insert}) {_RESTORE_LIMIT}" if in_transaction and limit else f"{ctes} {insert}"
        )

    def _read(self, keys: int, *, locking: bool) -> str:
        lock = self._dialect.locking_read if locking else ""
        # Else MariaDB reads all of a small table, and waits for the lock of a key that is not asked for.
        index = " FORCE INDEX (PRIMARY)" if locking and self._dialect.name == "mysql" else ""
        return self._dialect.markers(
            f"SELECT {ROW}, {self._dialect.now_us} FROM {self._table}{index} WHERE key_hash IN {_list(keys)}{lock}"
        )

    def _complete_group(self, keys: int, owners: int, results: int) -> str:
        """Complete keys of these owners. The first parameters are `results` pairs of (hash, result) to store."""
        cases = " ".join(["WHEN ? THEN ?"] * results)
        result = f", result = CASE key_hash {cases} ELSE result END" if results else ""
        return self._change(f"{self._done}{result}", _of(keys, owners))

    def _renew(self, keys: int, owners: int) -> str:
        lease = f"lease_until = {self._from_now(self._lease_us)}"
        return self._change(lease, f"{_of(keys, owners)} AND {IN_PROGRESS}")

    def _delete_group(self, keys: int, owners: int) -> str:
        return self._delete(f"{_of(keys, owners)} AND {IN_PROGRESS}")

    def _delete_free(self, keys: int) -> str:
        """Delete keys whose backoff is over. Parameters: the hashes, `NOBODY`."""
        return self._delete(
            f"key_hash IN {_list(keys)} AND owner = ? AND lease_until < {self._dialect.now_us}"
        )

    def _hold(self) -> str:
        """Hold a key that nobody owns for a time, waiting about a second for a transaction that has it.

        Parameters: hash, text, `NOBODY`, microseconds; and for MySQL again `NOBODY`, microseconds, `NOBODY`, `NOBODY`.
        """
        now, status = self._dialect.now_us, KeyStatus.IN_PROGRESS
        columns = "(fence, key_hash, k, status, owner, lease_until, update_at, expires_at)"
        expiry = self._expiry(status, "{0}").format
        if self._dialect.name == "mysql":
            update = (
                f"lease_until = IF(owner = ?, {now} + ?, lease_until), update_at = IF(owner = ?, {now}, update_at),"
                f" expires_at = IF(owner = ?, {expiry(now)}, expires_at)"
            )
            row = f"{now}, ?, ?, {status:d}, ?, fence + ?, fence, {expiry('fence')}"
            insert = f"INSERT INTO {self._table} {columns} VALUES ({row}) {self._dialect.if_stored(update)}"
            return self._dialect.scoped(insert, _BRIEF_S)
        limit = _statement_limit(_BRIEF_S) if self._dialect.name == "postgresql" else " WHERE true"
        blob = self._dialect.blob
        new = ", ".join(f"{name} = excluded.{name}" for name in ("lease_until", "update_at", "expires_at"))
        return (
            f"INSERT INTO {self._table} AS t$ {columns}"
            f" SELECT c$.n, CAST(? AS {blob}), ?, {status:d}, CAST(? AS {blob}), c$.n + ?, c$.n, {expiry('c$.n')}"
            f" FROM (SELECT {now} AS n{limit}) AS c$ WHERE true {self._dialect.if_stored(new)}"
            " WHERE t$.owner = excluded.owner"
        )

    def _owned(self, keys: int) -> str:
        return self._dialect.markers(
            f"SELECT key_hash, owner, status FROM {self._table} WHERE key_hash IN {_list(keys)}"
        )

    def _delete_expired_keys(self, keys: int) -> str:
        return self._delete(f"{self._is_expired} AND key_hash IN {_list(keys)}")

    def _change(self, change: str, where: str) -> str:
        if self._limits:
            return self._limited(f"UPDATE {self._table} SET {change} FROM c$", where)
        return self._dialect.markers(f"UPDATE {self._table} SET {change} WHERE {where}")

    def _delete(self, where: str) -> str:
        if self._limits:
            return self._limited(f"DELETE FROM {self._table} USING c$", where)
        return self._dialect.markers(f"DELETE FROM {self._table} WHERE {where}")

    def _limited(self, action: str, where: str) -> str:
        # No row is locked before it is joined with that of c$, which sets the limit.
        limit = f"WITH c$(n) AS (SELECT 1{_statement_limit(_BRIEF_S)})"
        return self._dialect.markers(f"{limit} {action} WHERE c$.n > 0 AND {where}")


def done(dialect: SqlDialect, retention_us: int) -> str:
    """What makes a key DONE. At least half of the retention is left to it, so that duplicates are known."""
    now = dialect.now_us
    # The expiry comes first, because MySQL assigns from left to right. If it stays, PostgreSQL updates no index.
    return (
        f"expires_at = CASE WHEN status = {KeyStatus.DEAD:d} OR expires_at < {now} + {retention_us // 2}"
        f" THEN {now} + {retention_us} ELSE expires_at END,"
        f" status = {KeyStatus.DONE:d}, lease_until = NULL, update_at = {now}"
    )


def limited_update(dialect: SqlDialect, table: str, change: str, where: str, wait_s: float) -> str:
    """An UPDATE that waits at most `wait_s` seconds for a row.

    On PostgreSQL the statement returns (key_hash, ...) of the changed row, or one row of NULLs. On other databases its
    row count shows whether a row was changed.
    """
    if dialect.name != "postgresql":
        return dialect.markers(dialect.scoped(f"UPDATE {table} SET {change} WHERE {where}", wait_s))
    limit = _postgresql_limit(wait_s)
    update = f"UPDATE {table} SET {change} FROM c$ WHERE c$.n > 0 AND {where} RETURNING key_hash, 0 AS fence"
    return dialect.markers(
        f"WITH c$(n) AS (SELECT {dialect.now_us}{limit}), i$ AS ({update}) {_RESTORE_LIMIT}"
    )


def _of(keys: int, owners: int) -> str:
    """A condition for rows of these keys that belong to these owners."""
    return f"key_hash IN {_list(keys)} AND owner IN {_list(owners)}"


def _list(count: int) -> str:
    return f"({', '.join('?' * count)})"


def _statement_limit(wait_s: float) -> str:
    """A condition that sets lock_timeout until the statement, and its transaction in autocommit, ends.

    PgBouncer may give the next one to another session.
    """
    return f" WHERE set_config('lock_timeout', '{_milliseconds(wait_s)}ms', true) IS NOT NULL"


def _milliseconds(wait_s: float) -> int:
    """A lock_timeout. 0 would be no limit."""
    return max(int(wait_s * 1000), 1)


def _postgresql_limit(wait_s: float) -> str:
    """A condition that sets lock_timeout and is always true: saves a round trip. CASE fixes the order."""
    return (
        f" WHERE CASE WHEN set_config('{_SAVED_LIMIT}', current_setting('lock_timeout'), true) IS NOT NULL"
        f" THEN set_config('lock_timeout', '{_milliseconds(wait_s)}ms', true) IS NOT NULL END"
    )
