"""Binding: a consumer's handler, options and keys, bound to a checker: all that processing depends on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.combining import Combiner
from idempotent.checkers.desk import ClaimDesk
from idempotent.checkers.transactions import TransactionHooks, transactions_of
from idempotent.errors import MessageError, described
from idempotent.keys import NO_KEY, Key, KeySpace
from idempotent.logs import EventLog
from idempotent.message import Message
from idempotent.observe.events import Event
from idempotent.observe.fields import about_message
from idempotent.observe.observers import Observers
from idempotent.observe.sparse import Sparse
from idempotent.policy import causes
from idempotent.processing.calling import AsyncCalls, Calls
from idempotent.processing.handler import Handler
from idempotent.processing.options import ConsumerOptions
from idempotent.processing.requests import Requests

log = EventLog(__name__)

RESULT_LIMIT: Final = 1_000_000
_SHOWN_KEYS: Final = 10


class Binding:
    """A consumer bound to a checker.

    Args:
        keys: the consumer's keys.
        handler: its handler.
        options: the options of `@consumer`.
        checker: the checker that it uses now.
        observers: those of the registry.
        disabled: the kill switch is on: verdicts are ignored.

    Attributes:
        name: the consumer's name, `subject:group`.
        desk: claims, completes and releases its keys.
        lone: claims and completes the key of one message alone.
        combiner: the same, if single messages share rounds; None: each has statements of its own.
        calls: runs its handler.
        transactions: the checker's transaction hooks.
        requests: makes the requests for its keys.
        store_failures: which failures of the store are logged.
        undone_transactions: which transactions that the database has undone are logged.
        counts_starts: a redelivered message is counted before it runs, because no lease tells that its process died.
    """

    def __init__(
        self,
        keys: KeySpace,
        handler: Handler,
        options: ConsumerOptions,
        checker: AbstractIdempotentChecker,
        observers: Observers,
        *,
        disabled: bool,
    ) -> None:
        self.name: Final = keys.name
        self.handler: Final = handler
        self.options: Final = options
        self.checker: Final = checker
        self.observers: Final = observers
        self.disabled: Final = disabled
        self.desk: Final[ClaimDesk] = checker.desk
        self.lone: Final[ClaimDesk | Combiner] = checker.lone
        self.combiner: Final = self.lone if isinstance(self.lone, Combiner) else None
        self.transactions: Final = transactions_of(checker)
        self.calls: Final = (
            AsyncCalls(
                self.name,
                handler,
                checker.awaiting,
                self.transactions,
                observers,
                options.handler_timeout_s,
            )
            if handler.is_async
            else Calls(self.name, handler, self.transactions, observers)
        )
        self.counts_starts: Final = isinstance(checker, TransactionHooks)
        self.requests: Final = Requests(keys, options, by_position=checker.keeps_positions)
        self.store_failures: Final = Sparse()
        self.undone_transactions: Final = Sparse()

    def about(self, message: Message) -> dict[str, object]:
        """The fields of a log line about a message."""
        key = self.key_of(message)
        return {"consumer": self.name, "key": None if key is NO_KEY else str(key), **about_message(message)}

    def key_of(self, message: Message) -> Key:
        """The key of a message; NO_KEY: it has none, or it cannot be computed."""
        try:
            return self.requests.of(message).key
        except MessageError:
            return NO_KEY

    def transaction_undone(self, messages: Sequence[Message], error: Exception) -> None:
        """Log that the database, with a deadlock for example, has undone the transaction of these messages' handlers.

        Args:
            messages: that of the handler that met it, or all in the transaction.
            error: what the handler or the COMMIT raised; the last of its causes is the database's own.
        """
        more = self.undone_transactions.take()
        if more is not None:
            *_, cause = causes(error)
            keys = [self.about(message)["key"] for message in messages[:_SHOWN_KEYS]]
            about = {"consumer": self.name, "keys": keys, "error": " ".join(described(cause).split())}
            log.warning("transaction_undone", extra={**about, "more": more})

    def encode(self, value: Any, message: Message) -> bytes | None:
        """What the handler of a message returned, as JSON; None if it is not stored, or cannot be."""
        if not self.options.store_result:
            return None
        try:
            encoded = json.dumps(value, separators=(",", ":")).encode()
        except Exception as error:  # such as a RecursionError; the effect has happened and must not fail now
            self._result_not_stored(message, f"not JSON: {error}")
            return None
        if len(encoded) > RESULT_LIMIT:
            self._result_not_stored(message, f"{len(encoded)} bytes; the limit is {RESULT_LIMIT}")
            return None
        return encoded

    def decode(self, result: bytes | None, message: Message) -> Any:
        """The value of a stored result, if the consumer stores results; None if it cannot be read."""
        if result is None or not self.options.store_result:
            return None
        try:
            return json.loads(result)
        except (ValueError, RecursionError) as error:  # the message is a duplicate all the same
            log.warning("result_not_read", extra={**self.about(message), "error": described(error)})
            return None

    def _result_not_stored(self, message: Message, why: str) -> None:
        self.observers.count(self.name, Event.RESULT_NOT_STORED)
        log.warning("result_not_stored", extra={**self.about(message), "why": why})
