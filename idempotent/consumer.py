"""Consumer: a handler decorated with `@consumer`."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, Final, TypeAlias

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.claims import Claim, ClaimRequest, Guarantee, KeyStatus, Lapsed, new_owner
from idempotent.errors import ConfigurationError, MissingKeyError, UndecodableMessageError
from idempotent.keys import HASH_BYTES, Key, KeySpace
from idempotent.message import Message, Position
from idempotent.observe.counting import Event, counters
from idempotent.outcomes import Result
from idempotent.policy import Backoff, ExceptionPolicy, OnExpiredLease, OnMissingKey, OnStoreError
from idempotent.processing.group import process_many
from idempotent.processing.handler import Handler
from idempotent.processing.single import process_one, raised_by_handler

log = logging.getLogger(__name__)

KeyFunction: TypeAlias = Callable[[Message], "str | bytes | None"]
ExpiredLeasePolicy: TypeAlias = "OnExpiredLease | Callable[[Key], bool]"

DISABLED_VARIABLE: Final = "IDEMPOTENT_DISABLED"
RESULT_LIMIT: Final = 1_000_000
# Python 3.11 takes as long to find a member of an enum as to make a small object.
_IN_GROUP: Final = KeyStatus.IN_PROGRESS_GROUP
_LEAVE: Final = Lapsed.LEAVE

_current_claim: ContextVar[Claim | None] = ContextVar("idempotent_current_claim", default=None)


def current_claim() -> Claim:
    """The claim under which the running handler runs: its key, and the fence to send downstream.

    Raises:
        LookupError: no handler is running in this context, or it handles a whole batch.
    """
    claim = _current_claim.get()
    if claim is None:
        raise LookupError("current_claim() is known only inside a handler of single messages")
    return claim


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """What `@consumer` was told. See `Registry.consumer` for the meaning."""

    key: KeyFunction | None
    exceptions: ExceptionPolicy
    max_attempts: int
    backoff: Backoff
    on_missing_key: OnMissingKey
    on_expired_lease: ExpiredLeasePolicy
    on_store_error: OnStoreError
    fingerprint: KeyFunction | None
    store_result: bool


class Consumer:
    """A handler that passes through a checker. Made by `@consumer`; call it with a message.

    Attributes:
        subject: what it consumes.
        group: who it is; two groups of one subject each process every message once.
        name: `subject:group`, as in metrics, keys and `IDEMPOTENT_DISABLED`.
    """

    def __init__(
        self,
        subject: str,
        group: str,
        handler: Handler,
        options: ConsumerOptions,
        resolve: Callable[[], AbstractIdempotentChecker],
    ) -> None:
        """Nothing is checked here that needs the checker; see `check`."""
        self.subject: Final = subject
        self.group: Final = group
        self.handler: Final = handler
        self.options: Final = options
        self._resolve = resolve
        self._checked: AbstractIdempotentChecker | None = None
        self._keys = KeySpace(subject, group)
        self.name: Final = self._keys.name
        self.disabled = False
        self._by_position = False
        parks = options.on_expired_lease is OnExpiredLease.PARK
        asks = callable(options.on_expired_lease)
        self._status = KeyStatus.IN_PROGRESS_PARK if parks or asks else KeyStatus.IN_PROGRESS
        self._on_lapsed = Lapsed.PARK if parks else Lapsed.TAKE_OVER
        # Whether a lapse was an attempt is known only after the question.
        self._max_attempts = None if asks else options.max_attempts
        functools.update_wrapper(self, handler.function)

    @property
    def checker(self) -> AbstractIdempotentChecker:
        """The checker in force, overrides included.

        Raises:
            UnknownCheckerError: no checker of that name is registered.
            ConfigurationError: checker and consumer do not go together.
        """
        checker = self._resolve()
        if checker is not self._checked:
            self.check(checker)
            self._checked = checker
        return checker

    def __call__(self, message: Message) -> Result:
        """Process one message. The handler's own exception propagates, after its key was released.

        Raises:
            UnknownCheckerError: no checker of that name is registered.
            ConfigurationError: checker and consumer do not go together.
        """
        result = process_one(self, self.checker, message)
        counters.add(self.name, result.outcome)
        error = raised_by_handler(result)
        if error is not None:
            raise error
        return result

    def process(self, message: Message) -> Result:
        """Process one message; never raises an `Exception` for it, see `Result.error`.

        Raises:
            UnknownCheckerError: no checker of that name is registered.
            ConfigurationError: checker and consumer do not go together.
        """
        result = process_one(self, self.checker, message)
        counters.add(self.name, result.outcome)
        return result

    def process_many(self, messages: Sequence[Message]) -> list[Result]:
        """Process messages together, claims and completions in one statement each. Results align with the input.

        Raises:
            UnknownCheckerError: no checker of that name is registered.
            ConfigurationError: checker and consumer do not go together.
        """
        results = process_many(self, self.checker, messages)
        for outcome, count in Counter([result.outcome for result in results]).items():
            counters.add(self.name, outcome, count)
        return results

    def check(self, checker: AbstractIdempotentChecker) -> None:
        """Refuse combinations that cannot keep their promise, and read the kill switch.

        Raises:
            ConfigurationError: what does not go together, and what to do.
        """
        transactional = checker.guarantee is Guarantee.TRANSACTIONAL
        kind = type(checker).__name__
        if self.handler.takes and not transactional:
            raise ConfigurationError(
                f"{self.handler.name} takes a {self.handler.takes.__name__}, but {kind} has no transaction to "
                "share; use a TransactionalSqlChecker, or remove the parameter"
            )
        if transactional and not self.handler.takes:
            log.warning(
                "handler_outside_transaction",
                extra={"consumer": self.name, "hint": "it takes no session, so its effect commits by itself"},
            )
        if transactional and self.options.on_store_error is OnStoreError.PROCESS:
            raise ConfigurationError(
                f"{self.name}: on_store_error='process' cannot go with {kind}: without its database there is no "
                "transaction to run in"
            )
        self._by_position = checker.keeps_positions
        for name in ("key", "fingerprint", "store_result"):
            if self._by_position and getattr(self.options, name):
                raise ConfigurationError(
                    f"{self.name}: {name}= cannot go with {kind}, which knows messages by their offset alone; "
                    "remove it, or use a TransactionalSqlChecker"
                )
        self.disabled = _is_disabled(self.name)
        if self.disabled:
            log.warning("consumer_disabled", extra={"consumer": self.name, "variable": DISABLED_VARIABLE})

    def request(self, message: Message, owner: bytes | None = None) -> ClaimRequest:
        """The claim for a message.

        Args:
            message: whose key.
            owner: the token of a group that it is claimed with; None: it is claimed alone.

        Raises:
            MissingKeyError: it has no id, or the key expression found nothing.
            UndecodableMessageError: the key or fingerprint expression failed.
        """
        options = self.options
        position: Position | None = None
        partition: Key | None = None
        if self._by_position:
            position = self._position(message)
            partition = self.partition_key(position.topic_id, position.partition)
            message_id: str | bytes | None = str(position)
        else:
            message_id = message.id if options.key is None else _evaluate(options.key, message, "key")
        if not message_id:
            what = "message id" if options.key is None else "key"
            raise MissingKeyError(f"{self.name}: the message has no {what}; see on_missing_key")
        if not isinstance(message_id, (str, bytes)):
            raise UndecodableMessageError(
                f"{self.name}: a key must be str or bytes, not {type(message_id).__name__}"
            )
        fingerprint = None if options.fingerprint is None else _fingerprint(options.fingerprint, message)
        key = self._keys.key(message_id)
        if owner is None:
            return self._alone(key, fingerprint, partition, position)
        return ClaimRequest(
            key,
            owner,
            fingerprint,
            _IN_GROUP,
            _LEAVE,
            self._max_attempts,
            partition,
            position,
        )

    def alone(self, request: ClaimRequest) -> ClaimRequest:
        """The claim by itself of what was to be claimed with a group."""
        return self._alone(request.key, request.fingerprint, request.partition, request.position)

    def _alone(
        self, key: Key, fingerprint: bytes | None, partition: Key | None, position: Position | None
    ) -> ClaimRequest:
        return ClaimRequest(
            key,
            new_owner(),
            fingerprint,
            self._status,
            self._on_lapsed,
            self._max_attempts,
            partition,
            position,
        )

    def _position(self, message: Message) -> Position:
        if not isinstance(message.position, Position):
            raise MissingKeyError(
                f"{self.name}: the message has no position in a partition, as those of Kafka have"
            )
        return message.position

    def partition_key(self, topic_id: str, partition: int) -> Key:
        """What the position in a partition is kept under."""
        return self._keys.key(f"{topic_id}/{partition}")

    def key_of(self, message_id: str | bytes) -> Key:
        """The key of a message id under this consumer."""
        return self._keys.key(message_id)

    def invoke(self, checker: AbstractIdempotentChecker, claim: Claim, message: Message) -> Any:
        """Run the handler on one message. What it raises is its own."""
        handler = self.handler
        token = _current_claim.set(claim)
        try:
            first: Any = [message] if handler.batch else message
            if handler.takes is None:
                returned = handler.function(first)
            else:
                returned = handler.function(first, checker.handler_argument(claim, handler.takes))
            return None if returned is None else _finished(returned)
        finally:
            _current_claim.reset(token)

    def invoke_batch(
        self, checker: AbstractIdempotentChecker, claim: Claim, messages: Sequence[Message]
    ) -> None:
        """Run a batch handler on all messages at once. What it raises is its own."""
        handler = self.handler
        if handler.takes is None:
            _finished(handler.function(list(messages)))
        else:
            _finished(handler.function(list(messages), checker.handler_argument(claim, handler.takes)))

    def encode(self, value: Any) -> bytes | None:
        """The handler's result as stored; None where results are not stored or this one cannot be."""
        if not self.options.store_result:
            return None
        try:
            encoded = json.dumps(value, separators=(",", ":")).encode()
        except Exception as error:  # a RecursionError too: the effect has happened, whatever its result is
            self._result_not_stored(f"not JSON: {error}")
            return None
        if len(encoded) > RESULT_LIMIT:
            self._result_not_stored(f"{len(encoded)} bytes; the limit is {RESULT_LIMIT}")
            return None
        return encoded

    def decode(self, result: bytes | None) -> Any:
        """A stored result; None where there is none."""
        if result is None or not self.options.store_result:
            return None
        return json.loads(result)

    def _result_not_stored(self, why: str) -> None:
        counters.add(self.name, Event.RESULT_NOT_STORED)
        log.warning("result_not_stored", extra={"consumer": self.name, "why": why})


def _finished(value: Any) -> Any:
    """The handler's value. A wrapped `async def` looks like any function and has done nothing yet."""
    if isinstance(value, CoroutineType):
        value.close()
        raise ConfigurationError(
            "the handler returned a coroutine that nobody awaits; run it with asyncio.run()"
        )
    return value


def _evaluate(function: KeyFunction, message: Message, what: str) -> str | bytes | None:
    try:
        return function(message)
    except LookupError:
        return None  # m.headers["payment-id"] of a message without that header
    except Exception as error:
        raise UndecodableMessageError(
            f"the {what} of the message cannot be computed: {type(error).__name__}"
        ) from error


def _fingerprint(function: KeyFunction, message: Message) -> bytes:
    content = _evaluate(function, message, "fingerprint")
    if isinstance(content, str):
        content = content.encode("utf-8", "surrogatepass")
    if not isinstance(content, bytes):
        raise UndecodableMessageError(f"a fingerprint must be str or bytes, not {type(content).__name__}")
    return hashlib.blake2b(content, digest_size=HASH_BYTES).digest()


def _is_disabled(name: str) -> bool:
    names = [part.strip() for part in os.environ.get(DISABLED_VARIABLE, "").split(",")]
    return "all" in names or name in names
