"""What tests do with a Kafka broker beside the adapter."""

import time

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from idempotent import Message
from idempotent.adapters.copies import KEY_HEADER

TIMEOUT_S = 30.0


class Broker:
    """A client of its own: makes topics, sends, looks at dead letters and offsets."""

    def __init__(self, bootstrap):
        self.bootstrap = bootstrap
        # Without its complaints about a server that a test has stopped.
        self._config = {"bootstrap.servers": bootstrap, "log_level": 0}
        self.admin = AdminClient(self._config)
        self._producer = self._new_producer()

    def _new_producer(self):
        # A new topic's first messages may be sent twice, and without this come to lie behind the next ones.
        return Producer({**self._config, "enable.idempotence": True})

    def make(self, topic, partitions=1, **config):
        new = NewTopic(topic, partitions, 1, config=config)
        self.admin.create_topics([new])[topic].result(TIMEOUT_S)

    def add_partitions(self, topic, total):
        self.admin.create_partitions([NewPartitions(topic, total)])[topic].result(TIMEOUT_S)
        self._producer = self._new_producer()  # the old one learns of them in minutes

    def configure(self, topic, **config):
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)

    def drop(self, topic):
        self.admin.delete_topics([topic])[topic].result(TIMEOUT_S)

    def remove(self, topic, before, partition=0):
        """Remove the records before an offset, as retention does."""
        where = TopicPartition(topic, partition, before)
        self.admin.delete_records([where])[where].result(TIMEOUT_S)

    def send(self, topic, value=b"", key=None, partition=None, **headers):
        where = {} if partition is None else {"partition": partition}
        self._producer.produce(topic, value, key, headers=list(headers.items()), **where)

    def produce(self, topic, value, key, headers, partition=-1, timestamp=0):
        """Send a record as it is, and wait for it. A `timestamp` is in milliseconds; 0: now."""
        self._producer.produce(topic, value, key, partition, headers=headers, timestamp=timestamp)
        self.flush()

    def send_message(self, message):
        headers = {**message.headers, **({KEY_HEADER: message.id} if message.id else {})}
        self._producer.produce(message.subject, message.body, headers=list(headers.items()))
        self.flush()

    def flush(self):
        assert self._producer.flush(TIMEOUT_S) == 0

    def committed(self, group, topic, partition=0):
        """The group's next offset; None before the first commit."""
        found = self.last_commit(group, topic, partition)
        return None if found.offset < 0 else found.offset

    def metadata(self, group, topic, partition=0):
        """What the last commit of the group says beside the offset."""
        return self.last_commit(group, topic, partition).metadata

    def last_commit(self, group, topic, partition=0):
        """The group's next offset, with its leader epoch and metadata."""
        # Otherwise the broker answers when an open transaction ends, and its owner may be the thread that waits here.
        own = {"group.id": group, "isolation.level": "read_uncommitted"}
        consumer = Consumer({**self._config, **own})
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while True:
                try:
                    (tp,) = consumer.committed([TopicPartition(topic, partition)], timeout=TIMEOUT_S)
                    return tp
                except KafkaException:  # a broker that is starting
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)
        finally:
            consumer.close()

    def group(self, name):
        """The state of a group, and the number of its members."""
        found = self.admin.describe_consumer_groups([name])[name].result(TIMEOUT_S)
        return found.state.name, len(found.members)

    def commit(self, group, topic, offset, partition=0):
        """Let the group go on there; nobody may be in it."""
        consumer = Consumer({**self._config, "group.id": group, "enable.auto.commit": False})
        try:
            consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
        finally:
            consumer.close()

    def has_open_transaction(self, topic, partitions):
        """Whether a transaction still writes to a topic, or its commit is on its way to it."""
        latest = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}
        ends = []
        for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
            found = self.admin.list_offsets(latest, isolation_level=isolation)
            ends.append([found[partition].result(TIMEOUT_S).offset for partition in latest])
        return ends[0] != ends[1]

    def read(self, topic):
        """All that lies in a topic now."""
        return [_message(raw) for raw in self.read_raw(topic)]

    def read_raw(self, topic, isolation="read_committed"):
        """The same, as the client gives it."""
        own = {"group.id": "reader", "enable.auto.commit": False, "isolation.level": isolation}
        consumer = Consumer({**self._config, **own})
        found = []
        try:
            for number in consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions:
                low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=TIMEOUT_S)
                consumer.assign([TopicPartition(topic, number, low)])
                deadline = time.monotonic() + TIMEOUT_S
                at = low
                while at < high and time.monotonic() < deadline:
                    raw = consumer.poll(0.2)
                    if raw is not None and raw.error() is None:
                        found.append(raw)
                    at = consumer.position([TopicPartition(topic, number)])[0].offset
        finally:
            consumer.close()
        return found


def _message(raw):
    headers = {name: value and value.decode(errors="backslashreplace") for name, value in raw.headers() or []}
    return Message(raw.topic(), raw.value(), id=headers.get(KEY_HEADER), headers=headers, raw=raw)
