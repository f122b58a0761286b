"""KafkaFences: a transactional producer for each bucket of an outbox."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

from idempotent.adapters.answers import Answers
from idempotent.adapters.base import Fences
from idempotent.adapters.kafka.client import KafkaException, Producer, error_of, make_client
from idempotent.adapters.kafka.options import transactional_config
from idempotent.adapters.kafka.producer import Unconfirmed, send
from idempotent.adapters.kafka.records import Outgoing, outgoing
from idempotent.errors import AdapterError
from idempotent.logs import EventLog
from idempotent.message import Message

log = EventLog(__name__)

# So many buckets wait for the broker side by side: each transaction is two round trips.
_SIDE_BY_SIDE: Final = 16
_ABORT_S: Final = 1.0
_Failures: TypeAlias = dict[int, Unconfirmed]


class KafkaFences(Fences):
    """The transactional id of a bucket is `<name>-<bucket>`: the producer that begins with it fences the one before.

    `publish` makes one transaction of the messages of each bucket. After a failure that producer is dropped, and the
    next one ends its transaction: a commit in progress is completed, any other transaction is aborted.

    Args:
        security: the settings of every client.
        name: all relays of one outbox have the same, and no other outbox has it.
        timeout_s: seconds within which the broker must confirm a transaction.
        own: the user's settings.
    """

    def __init__(
        self, security: Mapping[str, Any], name: str, *, timeout_s: float, own: Mapping[str, Any]
    ) -> None:
        self._where = security["bootstrap.servers"]
        self._name = name
        self._config = transactional_config(security, name, timeout_s=timeout_s, own=own)
        self._timeout_s = int(self._config["message.timeout.ms"]) / 1000
        self._producers: dict[int, Producer] = {}
        self._pool: ThreadPoolExecutor | None = None

    def take(self, buckets: Collection[int]) -> None:
        for bucket in self._producers.keys() - set(buckets):
            del self._producers[bucket]
        missing = [bucket for bucket in buckets if bucket not in self._producers]
        if not missing:
            return
        errors = [error for error in self._threads().map(self._begin, missing) if error is not None]
        if errors:
            raise AdapterError(
                f"Kafka at {self._where} did not give {len(errors)} of {len(missing)} transactional ids "
                f"{self._name}-<bucket>: {errors[0]}"
            )

    def publish(self, messages: Sequence[Message], buckets: Sequence[int]) -> None:
        answers = Answers(messages)
        parts: dict[int, dict[int, Outgoing]] = defaultdict(dict)
        for place, record in answers.made(outgoing).items():
            parts[buckets[place]][place] = record
        failed: _Failures = {}
        for failures in self._threads().map(self._publish, parts.keys(), parts.values()):
            failed |= failures
        for place, failure in sorted(failed.items()):
            reason = f"Kafka at {self._where}: {failure.reason}"
            if failure.is_refused:
                answers.refuse(place, reason)
            else:
                answers.lose([place], reason)
        answers.check()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._producers.clear()

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="idempotent-kafka-fence")
        return self._pool

    def _begin(self, bucket: int) -> str | None:
        """Begin with a bucket's id. Returns why that failed."""
        client = make_client(Producer, {**self._config, "transactional.id": f"{self._name}-{bucket}"})
        try:
            client.init_transactions(self._timeout_s)
        except KafkaException as error:
            return error_of(error)
        self._producers[bucket] = client
        return None

    def _publish(self, bucket: int, records: Mapping[int, Outgoing]) -> _Failures:
        """Publish a bucket's messages in one transaction. Returns why it was not committed, for each of them."""
        client = self._producers.get(bucket)
        if client is None:
            # To begin here would let messages through that were read when another relay may have had the bucket.
            return dict.fromkeys(records, Unconfirmed(f"the fence of bucket {bucket} is not held"))
        try:
            client.begin_transaction()
            failed = self._sent(client, records)
            if not failed:
                client.commit_transaction(self._timeout_s)
                return {}
        except KafkaException as error:
            failed = dict.fromkeys(records, Unconfirmed(error_of(error)))
        self._drop(bucket)
        aborted = Unconfirmed("the transaction was not committed, because of another message")
        return dict.fromkeys(records, aborted) | failed

    def _drop(self, bucket: int) -> None:
        """Let a fence go, and do not keep readers waiting for the end of its transaction."""
        client = self._producers.pop(bucket)
        with suppress(KafkaException):  # the next one that takes it ends the transaction
            client.abort_transaction(_ABORT_S)

    def _sent(self, client: Producer, records: Mapping[int, Outgoing]) -> _Failures:
        """Send messages, and wait for all of them. Returns those that the broker did not take."""
        failed = dict.fromkeys(records, Unconfirmed(f"no answer within {self._timeout_s:g} s"))
        unreported = set(records)

        def report(place: int, failure: Unconfirmed | None) -> None:
            unreported.remove(place)
            if failure is None:
                del failed[place]
            else:
                # Of a batch that the broker refuses, it does not say which record it meant.
                is_refused = failure.is_refused and not (failure.is_shared and len(records) > 1)
                failed[place] = replace(failure, is_refused=is_refused)

        for place, record in records.items():
            send(client, record, partial(report, place))
            client.poll(0)
        # `flush` would call back once more after a fatal error, with that error raised.
        until = time.monotonic() + self._timeout_s + 1
        while unreported and (left_s := until - time.monotonic()) > 0:
            client.poll(left_s)
        return failed
