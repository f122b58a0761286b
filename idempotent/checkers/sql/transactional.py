"""TransactionalSqlChecker: the key commits in the transaction of the handler's own writes, or not at all."""

from __future__ import annotations

from idempotent.admin import KeyAdmin
from idempotent.checkers.sql.admin import SqlKeyAdmin
from idempotent.checkers.sql.in_transactions import InTransactions
from idempotent.checkers.sql.ledgers import KeyLedger


class TransactionalSqlChecker(InTransactions):
    """One transaction contains the key's INSERT and the handler's writes, so both commit or neither.

    The handler gets the transaction as its second parameter, a `Session`, `Connection`, `AsyncSession` or
    `AsyncConnection` by its annotation, and writes only through it. The handler must not end the transaction; an
    exception always rolls back its writes.

    A group claims all its keys in one statement, runs its handlers, and commits once. If one of them fails,
    everything is rolled back and each message runs again in a transaction of its own; with `savepoints=True` a
    failed handler is undone alone.

    Args:
        engine_or_url: an SQLAlchemy engine, URL or `sessionmaker`; the database of the handlers' writes. With an
            AsyncEngine, an `async_sessionmaker` or the URL of an asyncio driver, the handlers are `async def`.
        table: the key table, in the same database; make it with `idempotent.migrations.upgrade(url)`.
        retention_s: seconds a key is remembered, counted from its claim.
        dead_retention_s: seconds a DEAD key is remembered; None: until a person resolves it.
        lock_timeout_s: seconds a claim waits for another transaction that holds its key, before it answers
            IN_PROGRESS. On SQLite the file's busy timeout (the engine's `timeout`) applies instead.
        savepoints: isolate the handlers of a group from each other (half as fast).
        strict: also detect a transaction that was ended in a way that SQLAlchemy does not see (two more round trips).

    Raises:
        ConfigurationError: an invalid URL, table name or duration.
        MissingExtraError: the database's driver is not installed.
    """

    ledger_type = KeyLedger

    def admin(self) -> KeyAdmin:
        return SqlKeyAdmin(self.store, self.retention_s)
