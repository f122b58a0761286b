"""Block: an `atomic()` that contains keys and the effects of their handlers."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from django.db import transaction

from idempotent.adapters.django.database import Database
from idempotent.errors import ConfigurationError, StoreError, TransactionEscapedError
from idempotent.stores.sql.cursor import DriverConnection


class Block:
    """An `atomic()` of the checker: a transaction of its own, or a savepoint in the `atomic()` that is open.

    Args:
        database: where.

    Attributes:
        joins: whether it is a savepoint. Then who opened the outer one commits.
        is_committed: whether its own transaction has committed.
        on_end: called once, when it has ended.
        began: when it began, by the monotonic clock.

    Raises:
        StoreError: the database did not answer, or the open `atomic()` can only be rolled back.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.is_committed = False
        self.on_end: Callable[[], None] | None = None
        self.began: Final = time.monotonic()
        self._is_open = False
        with database.translated():
            connection = self.connection = database.connection
            self.joins: Final[bool] = connection.in_atomic_block or not connection.get_autocommit()
            if connection.in_atomic_block and connection.needs_rollback:
                raise StoreError(
                    "an error has broken the open atomic(): no key can be claimed in it. Let its exception pass"
                )
            if self.joins and not connection.in_atomic_block and connection.vendor == "sqlite":
                raise ConfigurationError(
                    "without autocommit, SQLite has no transaction that the key could be in: use atomic()"
                )
            self._atomic = transaction.atomic(database.using)
            self._atomic.__enter__()
            self._is_open = True
            try:
                if not self.joins:
                    connection.on_commit(self._note_commit)  # before those of the application
                self.driver: Final[DriverConnection] = database.driver()
            except BaseException:
                self.roll_back()
                raise

    def _note_commit(self) -> None:
        self.is_committed = True

    @property
    def has_ended(self) -> bool:
        """Whether it contains nothing more."""
        return not self._is_open

    def demand_whole(self) -> None:
        """Check that nothing but this block's end is left to do.

        Raises:
            TransactionEscapedError: its end would roll back, or is not the end of this block.
        """
        connection = self.connection
        if connection.needs_rollback:
            raise TransactionEscapedError(
                "the handler returned, although its atomic() can only be rolled back: it ignored an error of the "
                "database, or called set_rollback(); let the exception pass, or put what may fail into an atomic()"
            ) from connection.rollback_exc
        if not connection.atomic_blocks or connection.atomic_blocks[-1] is not self._atomic:
            raise TransactionEscapedError(
                "the handler has left an atomic() open, or has closed the connection of the transaction"
            )

    def commit(self) -> None:
        """End it: commit, or release the savepoint. Exceptions of Django pass through."""
        self._is_open = False
        self._atomic.__exit__(None, None, None)

    def roll_back(self) -> None:
        """Take back all that is in it. Never raises; idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        blocks: list[Any] = self.connection.atomic_blocks
        if not any(each is self._atomic for each in blocks):
            return  # the handler has connected again: the blocks of the new connection are not ours
        with suppress(Exception):  # Django drops the connection, or lets the outer atomic() roll back
            while blocks and blocks[-1] is not self._atomic:
                blocks[-1].__exit__(_RolledBack, _RolledBack(), None)
        with suppress(Exception):
            self._atomic.__exit__(_RolledBack, _RolledBack(), None)

    def interrupt(self) -> None:
        """Expect no more of its connection, which may hold an unread answer; an outer `atomic()` keeps it."""
        if not self.joins:
            self.drop_connection()
        self.roll_back()

    def drop_connection(self) -> None:
        """Close the connection: the next use opens another one."""
        with suppress(Exception):
            self.connection.close()

    def close(self) -> None:
        """Roll back, unless it has ended. Never raises; idempotent."""
        self.roll_back()
        self.end()

    def end(self) -> None:
        """Tell that it has ended."""
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end()


class _RolledBack(Exception):  # noqa: N818 - never raised
    """What `atomic()` is told as the reason of a rollback."""
