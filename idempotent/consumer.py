"""Consumer: a handler decorated with `@consumer`."""

from __future__ import annotations

import functools
import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.transactions import TransactionHooks
from idempotent.errors import ConfigurationError
from idempotent.keys import Key, KeySpace
from idempotent.message import Message
from idempotent.observe.observers import Observers
from idempotent.outcomes import Result
from idempotent.policy import OnStoreError
from idempotent.processing.binding import Binding, current_claim
from idempotent.processing.group import process_many
from idempotent.processing.handler import Handler
from idempotent.processing.options import ConsumerOptions
from idempotent.processing.results import raised_by_handler
from idempotent.processing.single import process_one

__all__ = ["Consumer", "current_claim"]

log = logging.getLogger(__name__)

DISABLED_VARIABLE: Final = "IDEMPOTENT_DISABLED"


class Consumer:
    """A handler that passes through a checker. Made by `@consumer`; call it with a message.

    Attributes:
        subject: the queue, destination or topic that it consumes.
        group: its name among the consumers of the subject; each group processes every message once.
        name: `subject:group`, as in metrics, keys and `IDEMPOTENT_DISABLED`.
    """

    def __init__(
        self,
        subject: str,
        group: str,
        handler: Handler,
        options: ConsumerOptions,
        resolve: Callable[[], AbstractIdempotentChecker],
        observers: Observers,
    ) -> None:
        self.subject: Final = subject
        self.group: Final = group
        self.handler: Final = handler
        self.options: Final = options
        self.observers: Final = observers
        self._resolve = resolve
        self._binding: Binding | None = None
        self._keys = KeySpace(subject, group)
        self.name: Final = self._keys.name
        functools.update_wrapper(self, handler.function)

    @property
    def checker(self) -> AbstractIdempotentChecker:
        """The checker that it uses now, which may be an override.

        Raises:
            UnknownCheckerError: no checker of that name is registered.
            ConfigurationError: the checker does not support the consumer's options or handler.
        """
        return self.binding.checker

    @property
    def binding(self) -> Binding:
        """The consumer bound to that checker. Raises what `checker` raises."""
        checker = self._resolve()
        binding = self._binding
        if binding is None or checker is not binding.checker:
            binding = self._binding = self.bind(checker)
        return binding

    def __call__(self, message: Message) -> Result:
        """Process one message. Raises what `checker` raises, and the handler's exception after its key was released."""
        result = self.process(message)
        error = raised_by_handler(result)
        if error is not None:
            raise error
        return result

    def process(self, message: Message) -> Result:
        """Process one message. The handler's exception is in `Result.error`. Raises what `checker` raises."""
        result = process_one(self.binding, message)
        self.observers.count(self.name, result.outcome)
        if self.observers.watch_results:
            self.observers.processed(self.name, (message,), (result,))
        return result

    def process_many(self, messages: Sequence[Message]) -> list[Result]:
        """Process messages together: one statement claims their keys, one completes them. Raises what `checker` raises.

        Returns the results in the order of the messages.
        """
        results = process_many(self.binding, messages)
        for outcome, count in Counter([result.outcome for result in results]).items():
            self.observers.count(self.name, outcome, count)
        if self.observers.watch_results:
            self.observers.processed(self.name, messages, results)
        return results

    def check(self) -> None:
        """Look up the checker and bind to it, as a Worker does at start. Raises what `checker` raises."""
        self._binding = self.bind(self._resolve())

    def bind(self, checker: AbstractIdempotentChecker) -> Binding:
        """Bind the consumer to a checker, and read the kill switch.

        Raises:
            ConfigurationError: the checker does not support the consumer's options or handler.
        """
        self._check(checker)
        disabled = _is_disabled(self.name)
        if disabled:
            log.warning("consumer_disabled", extra={"consumer": self.name, "variable": DISABLED_VARIABLE})
        return Binding(self._keys, self.handler, self.options, checker, self.observers, disabled=disabled)

    def _check(self, checker: AbstractIdempotentChecker) -> None:
        transactional = isinstance(checker, TransactionHooks)
        kind = type(checker).__name__
        if self.handler.takes and not transactional:
            raise ConfigurationError(
                f"{self.handler.name} takes a {self.handler.takes.__name__}, but {kind} has no transaction to "
                "share; use a TransactionalSqlChecker, or remove the parameter"
            )
        if transactional and not self.handler.takes:
            log.warning(
                "handler_outside_transaction",
                extra={
                    "consumer": self.name,
                    "hint": "the handler takes no session, so its effect commits separately",
                },
            )
        if transactional and self.options.on_store_error is OnStoreError.PROCESS:
            raise ConfigurationError(
                f"{self.name}: on_store_error='process' cannot go with {kind}: without its database the "
                "handler has no transaction; remove the option"
            )
        for name in ("key", "fingerprint", "store_result"):
            if checker.keeps_positions and getattr(self.options, name):
                raise ConfigurationError(
                    f"{self.name}: {name}= cannot go with {kind}, which identifies a message by its offset; "
                    "remove it, or use a TransactionalSqlChecker"
                )

    def key_of(self, message_id: str | bytes) -> Key:
        """The key of a message id under this consumer."""
        return self._keys.key(message_id)


def _is_disabled(name: str) -> bool:
    names = [part.strip() for part in os.environ.get(DISABLED_VARIABLE, "").split(",")]
    return "all" in names or name in names
