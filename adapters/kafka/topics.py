"""TopicIds: looks up the UUIDs of topics without waiting."""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from idempotent.adapters.kafka.client import AdminClient, KafkaException, TopicCollection, Uuid, error_of
from idempotent.logs import EventLog

log = EventLog(__name__)
_TIMEOUT_S: Final = 10.0
_RETRY_S: Final = 1.0
_NO_ID: Final = str(Uuid(0, 0))


@dataclass(slots=True, eq=False)
class TopicId:
    """The current id of a topic; None until the broker has answered."""

    topic: str
    value: str | None = None
    insists: bool = True
    """Whether a look-up that failed is repeated."""


class TopicIds:
    """Looks up ids. Belongs to the adapter's thread; the answers arrive in another one."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self._open: list[tuple[TopicId, Future[Any]]] = []
        self._failed: list[tuple[float, TopicId]] = []

    def ask(self, topics: Collection[str], *, insists: bool = True) -> dict[str, TopicId]:
        """Start the look-ups; `upkeep` fills in the ids. What fails is repeated if this `insists`."""
        ids = {topic: TopicId(topic, insists=insists) for topic in topics}
        for topic_id in ids.values():
            self._ask(topic_id)
        return ids

    def upkeep(self) -> None:
        """Process the answers, and repeat failed look-ups."""
        answered = [(topic_id, future) for topic_id, future in self._open if future.done()]
        if answered:
            self._open = [pair for pair in self._open if pair not in answered]
            for topic_id, future in answered:
                self._take(topic_id, future)
        if self._failed and self._failed[0][0] <= time.monotonic():
            self._ask(self._failed.pop(0)[1])

    def _ask(self, topic_id: TopicId) -> None:
        asked = TopicCollection([topic_id.topic])
        futures = self._admin.describe_topics(asked, request_timeout=_TIMEOUT_S)
        self._open.append((topic_id, futures[topic_id.topic]))

    def _take(self, topic_id: TopicId, future: Future[Any]) -> None:
        try:
            uuid = future.result().topic_id
        except KafkaException as error:
            if not topic_id.insists:
                return
            log.warning("topic_id_unknown", extra={"topic": topic_id.topic, "error": error_of(error)})
            self._failed.append((time.monotonic() + _RETRY_S, topic_id))
            return
        # Brokers before 2.8 have no ids.
        topic_id.value = topic_id.topic if str(uuid) == _NO_ID else _text(uuid)


def _text(uuid: Uuid) -> str:
    """The id as Kafka's own tools print it; librdkafka's form has slashes."""
    return str(uuid).replace("+", "-").replace("/", "_")
