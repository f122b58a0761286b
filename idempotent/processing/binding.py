"""Binding: a consumer's handler, options and keys, bound to a checker: all that processing depends on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final
from uuid import UUID

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.batching import Combiner
from idempotent.checkers.protocol import ClaimProtocol
from idempotent.checkers.transactions import transactions_of
from idempotent.claims import ClaimRequest, KeyStatus, Lapsed, new_owner
from idempotent.errors import MessageError, MissingKeyError, UndecodableMessageError, described
from idempotent.keys import HASH_BYTES, NO_KEY, Key, KeySpace, id_of
from idempotent.logs import EventLog
from idempotent.message import Message, Position
from idempotent.observe.events import Event, Stage
from idempotent.observe.log_lines import LogThrottle, about_message
from idempotent.observe.observers import Observers
from idempotent.policy import OnCancel, OnExpiredLease, causes
from idempotent.processing.calling import AsyncCalls, Calls
from idempotent.processing.handler import Handler
from idempotent.processing.options import ConsumerOptions, KeyFunction
from idempotent.processing.steps import FINISH, RUN
from idempotent.values import changed

log = EventLog(__name__)

RESULT_LIMIT: Final = 1_000_000
_MOST_LOST: Final = 1000
_SHOWN_KEYS: Final = 10


class Requests:
    """Makes the claim requests of one consumer.

    Args:
        keys: the consumer's keys.
        options: the options of `@consumer`.
        by_position: the position in a partition identifies a message, instead of a key.
    """

    def __init__(self, keys: KeySpace, options: ConsumerOptions, *, by_position: bool) -> None:
        self._keys = keys
        self._key = options.key
        self._fingerprint = options.fingerprint
        self._by_position = by_position
        parks = options.on_expired_lease is OnExpiredLease.PARK
        asks = callable(options.on_expired_lease)
        self._status = KeyStatus.IN_PROGRESS_PARK if parks else KeyStatus.IN_PROGRESS
        self._at_first = Lapsed.PARK if parks else Lapsed.LEAVE
        self._after_a_death = Lapsed.ASK if asks else Lapsed.TAKE_OVER
        self._max_attempts = options.max_attempts

    def of(self, message: Message, owner: bytes | None = None) -> ClaimRequest:
        """The request for a message's key. It leaves a lapsed key as it is, or parks it.

        Args:
            message: the message.
            owner: the owner token of its run; None: a new one.

        Raises:
            MissingKeyError: the message has no id or position, or `key` returned nothing.
            UndecodableMessageError: `key` or `fingerprint` raised, or returned another type than they should.
        """
        position: Position | None = None
        partition: Key | None = None
        if self._by_position:
            if not isinstance(message.position, Position):
                raise MissingKeyError(
                    f"{self._keys.name}: the message has no position in a partition, as those of Kafka have"
                )
            position = message.position
            partition = self.partition(position.topic_id, position.partition)
            message_id: str | bytes | int | UUID | None = str(position)
        else:
            message_id = message.id if self._key is None else _evaluate(self._key, message, "key")
        if message_id is not None and not isinstance(message_id, (str, bytes)):
            message_id = _id(message_id, "a key")
        if not message_id:
            what = "message id" if self._key is None else "key"
            raise MissingKeyError(f"{self._keys.name}: the message has no {what}; see on_missing_key")
        fingerprint = None if self._fingerprint is None else _fingerprint(self._fingerprint, message)
        key = self._keys.key(message_id)
        return ClaimRequest(
            key,
            owner or new_owner(),
            fingerprint,
            self._status,
            self._at_first,
            self._max_attempts,
            partition,
            position,
            message.redelivered,
        )

    def after_a_death(self, request: ClaimRequest) -> ClaimRequest:
        """The request that takes over the key of a process that died."""
        return changed(request, on_lapsed=self._after_a_death)

    def partition(self, topic_id: str, partition: int) -> Key:
        """The key under which the next offset of a partition is stored."""
        return self._keys.key(f"{topic_id}/{partition}")


def _evaluate(function: KeyFunction, message: Message, what: str) -> str | bytes | int | UUID | None:
    try:
        return function(message)
    except LookupError:
        return None  # such as message.headers["payment-id"] without that header
    except Exception as error:
        raise UndecodableMessageError(
            f"the {what} of the message cannot be computed: {type(error).__name__}"
        ) from error


def _id(value: object, what: str) -> str | bytes:
    try:
        return id_of(value, what)
    except TypeError as error:
        raise UndecodableMessageError(str(error)) from error


def _fingerprint(function: KeyFunction, message: Message) -> bytes:
    content = _evaluate(function, message, "fingerprint")
    if content is None and message.body is None:
        # A tombstone has other content than an empty body, and than any text.
        return hashlib.blake2b(digest_size=HASH_BYTES, person=b"tombstone").digest()
    if not isinstance(content, (str, bytes)):
        content = _id(content, "a fingerprint")
    if isinstance(content, str):
        content = content.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=HASH_BYTES).digest()


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
        protocol: claims, completes and releases its keys.
        lone: claims and completes the key of one message alone.
        combiner: the same, if single messages share rounds; None: each has statements of its own.
        calls: runs its handler.
        run_step: the kind of the step that does so.
        transactions: the checker's transaction hooks.
        requests: makes the requests for its keys.
        store_failures: which failures of the store are logged.
        undone_transactions: which transactions that the database has undone are logged.
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
        self.handler = handler
        self.options: Final = options
        self.checker: Final = checker
        self.observers: Final = observers
        self.disabled: Final = disabled
        self.protocol: Final[ClaimProtocol] = checker.protocol
        self.lone: Final[ClaimProtocol | Combiner] = checker.lone
        self.combiner: Final = self.lone if isinstance(self.lone, Combiner) else None
        self.transactions: Final = transactions_of(checker)
        self.calls: Calls | AsyncCalls = self._calls_of(handler)
        self.run_step: Final = FINISH if options.on_cancel is OnCancel.FINISH else RUN
        self.requests: Final = Requests(keys, options, by_position=checker.remembers.by_position)
        self.store_failures: Final = LogThrottle()
        self.undone_transactions: Final = LogThrottle()
        self._lost: Final[dict[bytes, None]] = {}

    def _calls_of(self, handler: Handler) -> Calls | AsyncCalls:
        if not handler.is_async:
            return Calls(self.name, handler, self.transactions, self.observers)
        return AsyncCalls(
            self.name,
            handler,
            self.checker.awaiting,
            self.transactions,
            self.observers,
            self.options.handler_timeout_s,
        )

    def with_handler(self, handler: Handler) -> Binding:
        """The same with another handler, for one call."""
        other = object.__new__(Binding)
        vars(other).update(
            vars(self)
        )  # a tenth of the time of copy.copy, for each call of a protected function
        vars(other).pop("stages", None)
        other.handler = handler
        other.calls = self._calls_of(handler)
        return other

    @cached_property
    def stages(self) -> Mapping[Callable[..., Any], tuple[Stage, bool]]:
        """The steps whose time observers may want to know, see `timed`."""
        return {
            self.lone.claim: (Stage.CLAIM, False),
            self.protocol.claim_many: (Stage.CLAIM, True),
            self.calls.one: (Stage.HANDLER, False),
            self.calls.batch: (Stage.HANDLER, True),
            self.lone.complete: (Stage.COMPLETION, False),
            self.protocol.complete_many: (Stage.COMPLETION, True),
        }

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

    def is_first_loss(self, key: Key) -> bool:
        """Whether this is the first series of lost connections that is noted of a key; notes it."""
        if key.hash in self._lost:
            return False
        while len(self._lost) >= _MOST_LOST:
            self._lost.pop(next(iter(self._lost)), None)
        self._lost[key.hash] = None
        return True

    def encode(self, value: Any, message: Message) -> bytes | None:
        """What is stored of a value that the handler of a message returned; None if it is not stored, or cannot be."""
        results = self.options.results
        if results is None:
            return None
        try:
            encoded = results.encode(value)
        except Exception as error:  # such as a RecursionError; the effect has happened and must not fail now
            self._result_not_stored(message, described(error))
            return None
        if len(encoded) > RESULT_LIMIT:
            self._result_not_stored(message, f"{len(encoded)} bytes; the limit is {RESULT_LIMIT}")
            return None
        return encoded

    def decode(self, result: bytes | None, message: Message) -> tuple[Any, bool]:
        """The value of a stored result, and True; None and False if no result is stored, or it cannot be read."""
        results = self.options.results
        if result is None or results is None:
            return None, False
        try:
            return results.decode(result), True
        except Exception as error:  # the message is a duplicate all the same
            log.warning("result_not_read", extra={**self.about(message), "error": described(error)})
            return None, False

    def _result_not_stored(self, message: Message, why: str) -> None:
        self.observers.count(self.name, Event.RESULT_NOT_STORED)
        log.warning("result_not_stored", extra={**self.about(message), "why": why})
