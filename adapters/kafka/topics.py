"""TopicIds: looks up the UUIDs of topics without waiting."""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final
from weakref import ref

from idempotent.adapters.kafka.client import AdminClient, KafkaException, TopicCollection, Uuid, error_of
from idempotent.logs import EventLog
from idempotent.policy import Backoff

log = EventLog(__name__)
_TIMEOUT_S: Final = 10.0
_RETRY: Final = Backoff(initial_s=1.0, maximum_s=60.0)
_NO_ID: Final = str(Uuid(0, 0))


@dataclass(slots=True, eq=False, weakref_slot=True)
class TopicId:
    """The current id of a topic; None until the broker has answered."""

    topic: str
    value: str | None = None
    insists: bool = True
    """Whether a look-up that failed is repeated, as long as anybody has this object."""
    failures: int = 0
    problem: str | None = None
    """Why the last look-up failed."""


class TopicIds:
    """Looks up ids. Belongs to the adapter's thread; the answers arrive in another one."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self._open: list[tuple[TopicId, Future[Any]]] = []
        self._failed: list[tuple[float, ref[TopicId]]] = []

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
        if not self._failed:
            return
        failed, self._failed = self._failed, []
        for due, known in failed:
            if due > time.monotonic():
                self._failed.append((due, known))
            elif (wanted := known()) is not None:
                self._ask(wanted)

    @property
    def unknown(self) -> dict[str, str]:
        """The topics whose ids are asked for in vain, and why."""
        ids = [each for each, _ in self._open]
        ids += [topic_id for _, known in self._failed if (topic_id := known()) is not None]
        return {each.topic: each.problem for each in ids if each.problem is not None}

    def _ask(self, topic_id: TopicId) -> None:
        asked = TopicCollection([topic_id.topic])
        futures = self._admin.describe_topics(asked, request_timeout=_TIMEOUT_S)
        self._open.append((topic_id, futures[topic_id.topic]))

    def _take(self, topic_id: TopicId, future: Future[Any]) -> None:
        # Not raised: its traceback would keep what nobody wants any more.
        error = future.exception()
        if isinstance(error, KafkaException):
            if not topic_id.insists:
                return
            topic_id.failures += 1
            topic_id.problem = error_of(error)
            log.warning("topic_id_unknown", extra={"topic": topic_id.topic, "error": topic_id.problem})
            self._failed.append((time.monotonic() + _RETRY.delay_s(topic_id.failures), ref(topic_id)))
            return
        topic_id.value = text_of(topic_id.topic, future.result().topic_id)


def text_of(topic: str, uuid: Uuid | str) -> str:
    """The id as Kafka's own tools print it; librdkafka's form has slashes. The topic's name for brokers without ids."""
    text = str(uuid)
    # Brokers before 2.8 have none.
    return topic if text == _NO_ID else text.replace("+", "-").replace("/", "_")
