"""Requests: makes the request for a message's key."""

from __future__ import annotations

import hashlib
from typing import Final
from uuid import UUID

from idempotent.claims import ClaimRequest, KeyStatus, Lapsed, new_owner
from idempotent.errors import MissingKeyError, UndecodableMessageError
from idempotent.keys import HASH_BYTES, Key, KeySpace, id_of
from idempotent.message import Message, Position
from idempotent.policy import OnExpiredLease
from idempotent.processing.options import ConsumerOptions, KeyFunction
from idempotent.values import changed

# Python 3.11 takes as long to look up an enum's member as to create a small object.
_IN_GROUP: Final = KeyStatus.IN_PROGRESS_GROUP
_LEAVE: Final = Lapsed.LEAVE


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
        self._on_lapsed = Lapsed.PARK if parks else Lapsed.TAKE_OVER
        self._at_first = Lapsed.PARK if parks else _LEAVE
        self._beside = self._status if parks else _IN_GROUP
        # A consumer that is asked decides first whether the lapse was an attempt.
        self._max_attempts = None if asks else options.max_attempts

    def of(self, message: Message, owner: bytes | None = None, *, beside: bool = True) -> ClaimRequest:
        """The request for a message's key.

        Args:
            message: the message.
            owner: the owner token of its run, which leaves a lapsed key as it is; None: it takes over a lapsed key, so
                nothing else may run in the process.
            beside: other messages run in this process, so a death proves nothing about this one.

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
        if owner is None:
            status, on_lapsed = self._status, self._on_lapsed
        else:
            status, on_lapsed = self._beside if beside else self._status, self._at_first
        return ClaimRequest(
            key,
            owner or new_owner(),
            fingerprint,
            status,
            on_lapsed,
            self._max_attempts,
            partition,
            position,
        )

    def alone(self, request: ClaimRequest) -> ClaimRequest:
        """The request that takes over a lapsed key: nothing else runs in the process."""
        return changed(request, owner=new_owner(), status=self._status, on_lapsed=self._on_lapsed)

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
