"""Deletions: the rows of published messages, until the database has deleted them."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future

from idempotent.checkers.side_calls import SideThreads
from idempotent.outbox.store import OutboxStore, Waiting


class Deletions:
    """Deletes published messages, and keeps which of them the database does not delete.

    A batch is deleted while the next one is published; a relay reads nothing before all are deleted: it would read, and
    publish, the same messages again and again.

    Args:
        store: the outbox.
    """

    def __init__(self, store: OutboxStore) -> None:
        self._store = store
        # The number of each, and when it was sent.
        self._published: dict[int, int] = {}
        self._under_way: Future[None] | None = None
        # A daemon: the end of the process must not wait for a database that is silent.
        self._side = SideThreads("idempotent-relay-deletes", most=1)

    def begin(self, published: Iterable[Waiting]) -> None:
        """Delete messages in another thread, when those before them are deleted.

        Raises:
            StoreError: the database failed, or refuses; for these messages `finish` raises it.
        """
        self._note(published)
        if not self._published:
            return
        answer: Future[None] = Future()
        try:
            self._side.run(self._delete, answer, dict(self._published))
        except RuntimeError:  # the process may have no more threads
            self.finish()
        else:
            self._under_way = answer

    def add(self, published: Iterable[Waiting]) -> None:
        """Delete messages, and what could not be deleted before.

        Raises:
            StoreError: the database failed, or refuses.
        """
        self._note(published)
        self._store.delete(self._published)
        self._published.clear()

    def finish(self) -> None:
        """Wait for what was begun, and delete what could not be deleted before.

        Raises:
            StoreError: the database failed, or refuses.
        """
        self.add(())

    def close(self) -> None:
        """End the thread when it has deleted."""
        self._side.close()

    def _note(self, published: Iterable[Waiting]) -> None:
        """Wait for what was begun, and note more to delete, also if that failed."""
        begun, self._under_way = self._under_way, None
        try:
            if begun is not None:
                begun.result()
                self._published.clear()
        finally:
            self._published.update((message.number, message.created_at) for message in published)

    def _delete(self, answer: Future[None], published: dict[int, int]) -> None:
        try:
            self._store.delete(published)
        except BaseException as error:
            answer.set_exception(error)
        else:
            answer.set_result(None)
