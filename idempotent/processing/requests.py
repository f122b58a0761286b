"""Requests: from a message to the claim of its key."""

from __future__ import annotations

import hashlib
from typing import Final

from idempotent.claims import ClaimRequest, KeyStatus, Lapsed, new_owner
from idempotent.errors import MissingKeyError, UndecodableMessageError
from idempotent.keys import HASH_BYTES, Key, KeySpace
from idempotent.message import Message, Position
from idempotent.policy import OnExpiredLease
from idempotent.processing.options import ConsumerOptions, KeyFunction

# Python 3.11 takes as long to find a member of an enum as to make a small object.
_IN_GROUP: Final = KeyStatus.IN_PROGRESS_GROUP
_LEAVE: Final = Lapsed.LEAVE


class Requests:
    """Makes the claims of one consumer.

    Args:
        keys: the consumer's keys.
        options: what `@consumer` was told.
        by_position: messages are known by their position in a partition, instead of by a key.
    """

    def __init__(self, keys: KeySpace, options: ConsumerOptions, *, by_position: bool) -> None:
        self._keys = keys
        self._key = options.key
        self._fingerprint = options.fingerprint
        self._by_position = by_position
        parks = options.on_expired_lease is OnExpiredLease.PARK
        asks = callable(options.on_expired_lease)
        self._status = KeyStatus.IN_PROGRESS_PARK if parks or asks else KeyStatus.IN_PROGRESS
        self._on_lapsed = Lapsed.PARK if parks else Lapsed.TAKE_OVER
        # Whether a lapse was an attempt is known only after the question.
        self._max_attempts = None if asks else options.max_attempts

    def of(self, message: Message, owner: bytes | None = None) -> ClaimRequest:
        """The claim for a message.

        Args:
            message: the message with the key.
            owner: the token of the group that it is claimed with; None: it is claimed alone.

        Raises:
            MissingKeyError: it has no id, or the key expression found nothing.
            UndecodableMessageError: the key or fingerprint expression failed.
        """
        position: Position | None = None
        partition: Key | None = None
        if self._by_position:
            position = self._position(message)
            partition = self.partition(position.topic_id, position.partition)
            message_id: str | bytes | None = str(position)
        else:
            message_id = message.id if self._key is None else _evaluate(self._key, message, "key")
        if not message_id:
            what = "message id" if self._key is None else "key"
            raise MissingKeyError(f"{self._keys.name}: the message has no {what}; see on_missing_key")
        if not isinstance(message_id, (str, bytes)):
            raise UndecodableMessageError(
                f"{self._keys.name}: a key must be str or bytes, not {type(message_id).__name__}"
            )
        fingerprint = None if self._fingerprint is None else _fingerprint(self._fingerprint, message)
        key = self._keys.key(message_id)
        if owner is None:
            return self._alone(key, fingerprint, partition, position)
        return ClaimRequest(
            key, owner, fingerprint, _IN_GROUP, _LEAVE, self._max_attempts, partition, position
        )

    def alone(self, request: ClaimRequest) -> ClaimRequest:
        """The claim on its own for a message that was to be claimed with a group."""
        return self._alone(request.key, request.fingerprint, request.partition, request.position)

    def partition(self, topic_id: str, partition: int) -> Key:
        """The key under which the next offset of a partition is kept."""
        return self._keys.key(f"{topic_id}/{partition}")

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
                f"{self._keys.name}: the message has no position in a partition, as those of Kafka have"
            )
        return message.position


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
