"""Binding: a consumer's handler, options and keys, bound to a checker: all that processing depends on."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Final

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.desk import ClaimDesk
from idempotent.checkers.transactions import TransactionHooks, transactions_of
from idempotent.claims import Claim
from idempotent.errors import MessageError
from idempotent.forks import end_child, generation
from idempotent.keys import KeySpace
from idempotent.message import Message
from idempotent.observe.events import Event
from idempotent.observe.fields import about_message
from idempotent.observe.observers import Observers
from idempotent.observe.sparse import Sparse
from idempotent.processing.finished import finished
from idempotent.processing.handler import Handler
from idempotent.processing.options import ConsumerOptions
from idempotent.processing.requests import Requests

log = logging.getLogger(__name__)

RESULT_LIMIT: Final = 1_000_000

_current_claim: ContextVar[Claim | None] = ContextVar("idempotent_current_claim", default=None)


def current_claim() -> Claim:
    """The claim of the message that the running handler processes: its key, and the fence to send downstream.

    Raises:
        LookupError: no handler is running in this context, or it is a batch handler.
    """
    claim = _current_claim.get()
    if claim is None:
        raise LookupError("current_claim() works only inside a handler that takes one message")
    return claim


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
        transactions: the checker's transaction hooks.
        requests: makes the requests for its keys.
        store_failures: which failures of the store are logged.
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
        self.transactions: Final = transactions_of(checker)
        self.counts_starts: Final = isinstance(checker, TransactionHooks)
        self.requests: Final = Requests(keys, options, by_position=checker.keeps_positions)
        self.store_failures: Final = Sparse()

    def invoke(self, claim: Claim, message: Message) -> Any:
        """Run the handler on one message and return its value. Exceptions pass through."""
        handler = self.handler
        process = generation.number
        token = _current_claim.set(claim)
        try:
            first: Any = [message] if handler.batch else message
            if self.observers.watch_runs:
                return self._watched((message,), self._arguments(claim, first))
            if handler.takes is None:
                returned = handler.function(first)
            else:
                returned = handler.function(first, self.transactions.handler_argument(claim, handler.takes))
            return None if returned is None else finished(returned)
        finally:
            if generation.number != process:
                end_child(self.name)
            _current_claim.reset(token)

    def invoke_batch(self, claim: Claim, messages: Sequence[Message]) -> None:
        """Run a batch handler on all messages together. Exceptions pass through."""
        arguments = self._arguments(claim, list(messages))
        process = generation.number
        try:
            if self.observers.watch_runs:
                self._watched(messages, arguments)
            else:
                finished(self.handler.function(*arguments))
        finally:
            if generation.number != process:
                end_child(self.name)

    def _arguments(self, claim: Claim, first: Any) -> tuple[Any, ...]:
        takes = self.handler.takes
        return (first,) if takes is None else (first, self.transactions.handler_argument(claim, takes))

    def _watched(self, messages: Sequence[Message], arguments: tuple[Any, ...]) -> Any:
        began = time.perf_counter()
        error: BaseException | None = None
        try:
            return finished(self.handler.function(*arguments))
        except BaseException as raised:
            error = raised
            raise
        finally:
            self.observers.ran(self.name, messages, time.perf_counter() - began, error)

    def about(self, message: Message) -> dict[str, object]:
        """The fields of a log line about a message."""
        try:
            key = str(self.requests.of(message).key)
        except MessageError:
            key = None
        return {"consumer": self.name, "key": key, **about_message(message)}

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

    def decode(self, result: bytes | None) -> Any:
        """The value of a stored result, if the consumer stores results."""
        if result is None or not self.options.store_result:
            return None
        return json.loads(result)

    def _result_not_stored(self, message: Message, why: str) -> None:
        self.observers.count(self.name, Event.RESULT_NOT_STORED)
        log.warning("result_not_stored", extra={**self.about(message), "why": why})
