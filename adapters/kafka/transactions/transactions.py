"""Transactions: commits outputs and offsets together, through a producer that is replaced when it fails."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from idempotent.adapters.kafka.client import (
    KafkaConsumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
    error_of,
    make_client,
)
from idempotent.adapters.kafka.commits import RETRY_S, Commits, Marks, new_of, offsets_of
from idempotent.adapters.kafka.outputs import Produced
from idempotent.adapters.kafka.partition import Partition
from idempotent.adapters.kafka.transactions.open_transaction import NO_LIMIT, OpenTransaction, Refusal, Step
from idempotent.logs import EventLog
from idempotent.observe.log_lines import about_message

log = EventLog(__name__)
_UPKEEP_S: Final = 0.05
_REVOKE_S: Final = 10.0
_LOOK_S: Final = 1.0
_SILENCE_S: Final = 10.0
_PAUSE_S: Final = 0.02
# How the client library spells a member of no generation, whose offsets a broker takes unseen.
_NO_MEMBER: Final = b"CGMDv2:\xff\xff\xff\xff"
_SHORTEST_S: Final = 0.01
_NEXT_CLIENT_S: Final = 1.0
_OFFSETS_S: Final = 5.0
_RETRY: Final = "retry.backoff.ms"
# The client library shortens each wait at random, by up to a fifth.
_SHORTEST_RETRY: Final = 0.7


class Transactions(Commits):
    """One transaction after the other: begin, send the outputs below the marks, send the offsets, commit.

    Outputs that were not committed go into the next transaction. After a commit with unknown outcome the group's
    offsets tell whether the outputs were committed too; handlers do not run again.

    Args:
        config: of the producer.
        is_ours_alone: no other process can have the transactional id. If False, a fenced producer is a fault.
        on_refused: called with an input whose outputs the broker always refuses, and the reason. Its
            `Produced.refused_until` is infinite and holds the offset back until `on_refused` changes it.

    Raises:
        ConfigurationError: librdkafka refuses the settings.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        is_ours_alone: bool,
        on_refused: Callable[[Produced, Refusal], None],
    ) -> None:
        self._id = config["transactional.id"]
        self._producer = TransactionalProducer(config)
        self._is_ours_alone = is_ours_alone
        self._on_refused = on_refused
        self._open: OpenTransaction | None = None
        self._most = NO_LIMIT
        self._complained_at = -_SILENCE_S
        self._fault: str | None = None

    @property
    def is_busy(self) -> bool:
        return self._open is not None

    @property
    def fault(self) -> str | None:
        return self._fault

    def start(self, consumer: KafkaConsumer, marks: Marks) -> None:
        capped = {partition: partition.outputs.cap(mark) for partition, mark in marks.items()}
        if capped != marks:
            self._owe()
        new = new_of(capped)
        if new and self._fault is None:
            self._open = OpenTransaction.of(new, self._most)
            self.upkeep(consumer)

    def commit(self, consumer: KafkaConsumer, marks: Marks) -> bool:
        until = time.monotonic() + _REVOKE_S
        self.wait(consumer, _REVOKE_S)
        owed_at = self.retry_at
        is_due = not self.is_busy
        while is_due and time.monotonic() < until:
            self.retry_at = math.inf
            self.start(consumer, marks)
            self.wait(consumer, until - time.monotonic())
            is_due = not self.is_busy and time.monotonic() >= self.retry_at
        is_done = not self.is_busy and self.retry_at == math.inf
        self.retry_at = min(self.retry_at, owed_at)
        return is_done

    def wait(self, consumer: KafkaConsumer, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while self.is_busy and (left_s := until - time.monotonic()) > 0:
            if not self._advance(consumer, min(left_s, _UPKEEP_S)):
                time.sleep(min(left_s, _PAUSE_S))

    def upkeep(self, consumer: KafkaConsumer) -> None:
        self._advance(consumer, _UPKEEP_S)

    def _advance(self, consumer: KafkaConsumer, wait_s: float) -> bool:
        """Take steps for at most `wait_s` seconds. False: the next one is not possible yet."""
        until = time.monotonic() + wait_s
        while self._fault is None:
            transaction = self._open
            try:
                if transaction is None:
                    # Initialise early, which fences the previous owner of this id.
                    return self._producer.is_ready(0.0)
                if not self._take(transaction, consumer, max(until - time.monotonic(), 0.0)):
                    return False
            except KafkaException as error:
                return self._failed(transaction, error.args[0])
            if time.monotonic() >= until:
                return True
        return False

    def _take(self, transaction: OpenTransaction, consumer: KafkaConsumer, wait_s: float) -> bool:
        """Take one step. False: it is not complete yet."""
        client = self._producer.client
        match transaction.step:
            case Step.BEGIN:
                if not self._producer.is_ready(wait_s):
                    return False
                # Read before the partitions are checked: a later rebalance makes this metadata stale.
                member = consumer.consumer_group_metadata()
                if member.startswith(_NO_MEMBER) or not transaction.is_open:
                    self._end()
                    return True
                transaction.begin(client, member)
            case Step.PRODUCE:
                transaction.produce(client)
                client.poll(wait_s if transaction.unreported else 0.0)
                if transaction.has_failed or not transaction.is_open:
                    transaction.go_to(Step.ABORT)
                elif not transaction.unsent and not transaction.unreported:
                    transaction.go_to(Step.SEND_OFFSETS)
            case Step.SEND_OFFSETS:
                return self._send_offsets(transaction, wait_s)
            case Step.COMMIT:
                client.commit_transaction(max(wait_s, _UPKEEP_S))
                self._committed(transaction)
            case Step.ABORT:
                client.abort_transaction(max(wait_s, _UPKEEP_S))
                self._aborted(transaction)
            case Step.LOOK:
                return self._producer.is_ready(wait_s) and self._look(transaction, consumer)
        return True

    def _send_offsets(self, transaction: OpenTransaction, wait_s: float) -> bool:
        if self._producer.send_offsets(offsets_of(transaction.marks), transaction.member, wait_s):
            transaction.go_to(Step.COMMIT)
            return True
        if transaction.stands_still:
            self._log_failure("the client library's call does not return")
            self._replace_client(transaction)
        return False

    def _failed(self, transaction: OpenTransaction | None, error: KafkaError) -> bool:
        """Decide what to do after an error. False: repeat the step later."""
        if error.retriable():
            self._log_waiting(error)
            if transaction is None or not transaction.stands_still:
                return False
            # The client library lost an answer, and an abort that began without a broker may wait forever.
        self._log_failure(error_of(error))
        if error.code() == KafkaError._FENCED and not self._is_ours_alone:  # noqa: SLF001 - public, despite its name
            self._open = None
            self._fault = (
                f"the transactional id {self._id!r} belongs to another process now, or a transaction took longer than "
                "transaction.timeout.ms"
            )
            return False
        if transaction is not None and error.txn_requires_abort() and transaction.step is not Step.ABORT:
            transaction.go_to(Step.ABORT)
            return True
        self._replace_client(transaction)
        return False

    def _replace_client(self, transaction: OpenTransaction | None) -> None:
        self._producer.renew()
        if transaction is not None:
            transaction.go_to(Step.LOOK)

    def _committed(self, transaction: OpenTransaction) -> None:
        for partition, mark in transaction.marks.items():
            _confirm(partition, mark)
        self._most = min(self._most * 2, NO_LIMIT)
        self._open = None
        self._producer.end(transaction.began)
        if not transaction.is_whole:
            self._owe(0.0)

    def _aborted(self, transaction: OpenTransaction) -> None:
        refusals = transaction.refusals
        blamed = {of: refusal for of, refusal in refusals.items() if refusal.is_certain or len(refusals) == 1}
        if refusals:
            # After a refused record the client library's sequence numbers are wrong, and the next transaction fails.
            self._producer.renew()
        else:
            self._producer.end(transaction.began)
        if refusals and not blamed:
            # The records of one batch are refused together. Smaller transactions isolate the bad record.
            self._most = max(transaction.inputs // 2, 1)
            reason = next(iter(refusals.values())).reason
            log.warning("outputs_refused_together", extra={"inputs": transaction.inputs, "error": reason})
        for produced, refusal in blamed.items():
            produced.refused_until = math.inf
            log.error("output_refused", extra={**about_message(produced.message), "error": refusal.reason})
            self._on_refused(produced, refusal)
        if not refusals and transaction.error is not None:
            self._log_failure(error_of(transaction.error))
        self._end(0.0 if refusals else RETRY_S)

    def _look(self, transaction: OpenTransaction, consumer: KafkaConsumer) -> bool:
        """Read the group's offsets to learn whether the transaction was committed."""
        try:
            found = consumer.committed(offsets_of(transaction.marks), timeout=_LOOK_S)
        except KafkaException as error:
            self._log_waiting(error.args[0])
            return False
        problem = next((tp.error for tp in found if tp.error is not None), None)
        if problem is not None:
            self._log_waiting(problem)
            return False
        offsets = {(tp.topic, tp.partition): tp.offset for tp in found}
        is_missing = False
        for partition, mark in transaction.marks.items():
            if offsets[partition.topic, partition.number] < mark:
                is_missing = True
            else:
                _confirm(partition, mark)
        self._open = None
        if is_missing or not transaction.is_whole:
            self._owe()
        return True

    def _end(self, wait_s: float = RETRY_S) -> None:
        self._open = None
        self._owe(wait_s)

    def _log_failure(self, error: str) -> None:
        log.warning("transaction_failed", extra={"transaction": self._id, "error": error})

    def _log_waiting(self, error: KafkaError) -> None:
        if time.monotonic() - self._complained_at > _SILENCE_S:
            self._complained_at = time.monotonic()
            log.warning("transaction_waits", extra={"transaction": self._id, "error": error_of(error)})


def _confirm(partition: Partition, mark: int) -> None:
    partition.committed = mark
    partition.outputs.drop_before(mark)


class TransactionalProducer:
    """Waits no longer than it is told. Belongs to the adapter's thread.

    A new client with the same id ends the transaction of the previous one: a commit in progress is completed, any
    other transaction is aborted.

    Args:
        config: of the client, with its transactional id.

    Raises:
        ConfigurationError: librdkafka refuses the settings.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._retry_s = int(config.get(_RETRY, 100)) / 1000 * _SHORTEST_RETRY
        self.client: Producer = make_client(Producer, config)
        self._is_ready = False
        self._not_before = 0.0
        self._sending: _Call | None = None

    def is_ready(self, wait_s: float) -> bool:
        """Whether the client may begin a transaction; call repeatedly until it may.

        Raises:
            KafkaException: this client never will.
        """
        if not self._is_ready:
            if time.monotonic() < self._not_before:
                return False
            try:
                self.client.init_transactions(max(wait_s, _SHORTEST_S))
            except KafkaException as error:
                if error.args[0].retriable():
                    return False
                raise
            self._is_ready = True
        return True

    def send_offsets(self, offsets: list[TopicPartition], member: Any, wait_s: float) -> bool:
        """Add offsets to the transaction; call repeatedly until it returns True.

        The client library does not honour the timeout here, and if the broker is killed meanwhile its call may never
        return (seen with librdkafka 2.16.0). `renew` abandons it.

        Raises:
            KafkaException: the offsets were refused.
        """
        sending = self._sending or _Call(self.client.send_offsets_to_transaction, offsets, member, _OFFSETS_S)
        has_returned = sending.wait(wait_s)
        self._sending = None if has_returned else sending
        if sending.error is not None and has_returned:
            raise sending.error
        return has_returned

    def end(self, began: float) -> None:
        """Note the end of a transaction that began at this time; the next one may need a new client.

        When a connection is lost, the client library sends a request again after a wait, and does not report it. The
        first request may still reach the broker: it would commit or abort the next transaction of this client, or add
        old offsets to it. A new client has a new epoch, for which the broker refuses such a request. A transaction
        that was shorter than the wait has sent no request twice.
        """
        if time.monotonic() - began > self._retry_s:
            self.renew()

    def renew(self) -> None:
        """Replace the client, and abandon its call in progress."""
        self._sending = None
        if not self._is_ready:
            self._not_before = (
                time.monotonic() + _NEXT_CLIENT_S
            )  # it failed at once, and the next one may too
        self.client = make_client(Producer, self._config)
        self._is_ready = False


class _Call:
    """A call of the client library in a thread, because it may never return. A caller that times out abandons it."""

    def __init__(self, function: Callable[..., object], *arguments: Any) -> None:
        self._ended = threading.Event()
        self.error: Exception | None = None
        thread = threading.Thread(target=self._run, args=(function, arguments), daemon=True)
        thread.name = "idempotent-kafka-call"
        thread.start()

    def wait(self, wait_s: float) -> bool:
        """Wait at most `wait_s` seconds. Whether the call has returned."""
        return self._ended.wait(wait_s)

    def _run(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        try:
            function(*arguments)
        except Exception as error:
            self.error = error
        finally:
            self._ended.set()
