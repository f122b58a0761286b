"""What `idempotent doctor` says of Kafka: the topics of consumers and of their dead letters, and the brokers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from idempotent.adapters.kafka.brokers import Brokers
from idempotent.adapters.kafka.client import (
    AdminClient,
    ConfigResource,
    KafkaException,
    error_of,
    make_client,
)
from idempotent.admin import Finding, Level
from idempotent.errors import AdapterError

_ANSWER_S: Final = 15.0
_DAY_S: Final = 86_400.0
_CONFIGS: Final = "kafka-configs.sh --bootstrap-server HOST --alter --entity-type topics --entity-name"


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What a cluster tells of a topic.

    Attributes:
        name: of the topic.
        replicas: the fewest copies of one of its partitions.
        in_sync: the fewest of them that are up to date.
        settings: by name, as text; None: this user may not read them.
    """

    name: str
    replicas: int
    in_sync: int
    settings: Mapping[str, str] | None

    def number(self, setting: str) -> float | None:
        """A setting as a number; None: it is not told."""
        text = (self.settings or {}).get(setting)
        return None if text is None else float(text)

    @property
    def kept_s(self) -> float:
        """How long records are kept, in seconds; infinite: for good, or until there are too many bytes."""
        kept_ms = self.number("retention.ms")
        return math.inf if kept_ms is None or kept_ms < 0 or not self.deletes else kept_ms / 1000

    @property
    def deletes(self) -> bool:
        """Whether records are removed because of their age or number."""
        return "delete" in (self.settings or {}).get("cleanup.policy", "delete")

    @property
    def compacts(self) -> bool:
        """Whether a record is removed after a later one with its key."""
        return "compact" in (self.settings or {}).get("cleanup.policy", "")


def kafka_findings(
    security: Mapping[str, Any],
    dead_letter_topics: Mapping[str, str],
    *,
    has_retry_topics: bool,
    horizon_s: float | None,
) -> Iterator[Finding]:
    """Check topics and brokers by what they tell of themselves. No topic is made, and no group is joined.

    Args:
        security: the settings of every client.
        dead_letter_topics: by subject.
        has_retry_topics: whether failed messages wait in topics.
        horizon_s: the longest time after which a message can be redelivered, in seconds; None: unknown.

    Raises:
        AdapterError: no broker answers, or it refuses the login.
    """
    where = str(security["bootstrap.servers"])
    brokers = Brokers(where)
    admin: Any = make_client(AdminClient, security, {"error_cb": brokers.on_error})
    try:
        brokers.meet(admin)
        # Of all topics: to ask for one may make it.
        metadata = admin.list_topics(timeout=_ANSWER_S)
    except KafkaException as error:
        raise AdapterError(f"cannot use {where}: {brokers.complaint or error_of(error)}") from error
    nodes = len(metadata.brokers)
    yield Finding(Level.OK, f"the broker answers: Kafka at {where}, brokers: {nodes}")
    if nodes == 1:
        yield Finding(
            Level.ADVICE,
            "the cluster has one broker: without it nothing moves, and its disk has the only copies",
            "three brokers, replication.factor=3 and min.insync.replicas=2 lose no record with one of them",
        )
    if not dead_letter_topics:
        yield Finding(
            Level.ADVICE,
            f"no topic of {where} is looked at",
            "name the module of the consumers, or the topics: --subject NAME",
        )
        return
    wanted = [*dict.fromkeys((*dead_letter_topics, *dead_letter_topics.values()))]
    there = [name for name in wanted if name in metadata.topics]
    number = next(iter(metadata.brokers))
    settings = _settings(admin, number, there)
    of_brokers = settings.pop(None)
    yield from _missing(
        dead_letter_topics,
        metadata.topics.keys(),
        has_retry_topics=has_retry_topics,
        makes_topics=(of_brokers or {}).get("auto.create.topics.enable") == "true",
    )
    offsets_min = (of_brokers or {}).get("offsets.retention.minutes")
    for name in there:
        partitions = metadata.topics[name].partitions.values()
        facts = TopicFacts(
            name,
            replicas=min((len(each.replicas) for each in partitions), default=0),
            in_sync=min((len(each.isrs) for each in partitions), default=0),
            settings=settings[name],
        )
        yield from topic_findings(
            facts,
            nodes=nodes,
            is_dead=name not in dead_letter_topics,
            offsets_kept_s=None if offsets_min is None else float(offsets_min) * 60,
            horizon_s=horizon_s,
        )


def _settings(admin: Any, broker: int, topics: Collection[str]) -> dict[str | None, dict[str, str] | None]:
    """The settings of a broker, under None, and of topics; None: this user may not read them."""
    named: dict[str | None, Any] = {None: ConfigResource(ConfigResource.Type.BROKER, str(broker))}
    named |= {name: ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics}
    futures = admin.describe_configs([*named.values()], request_timeout=_ANSWER_S)
    found: dict[str | None, dict[str, str] | None] = {}
    for name, resource in named.items():
        try:
            entries = futures[resource].result(_ANSWER_S + 1)
        except (KafkaException, TimeoutError):
            found[name] = None
        else:
            found[name] = {each.name: each.value for each in entries.values() if each.value is not None}
    return found


def _missing(
    dead_letter_topics: Mapping[str, str],
    known: Collection[str],
    *,
    has_retry_topics: bool,
    makes_topics: bool,
) -> Iterator[Finding]:
    for subject, dead in dead_letter_topics.items():
        if subject not in known:
            yield Finding(
                Level.ERROR,
                f"the topic {subject} does not exist",
                "kafka-topics.sh --create; is the name right?",
            )
        if dead not in known:
            yield Finding(
                Level.WARNING if makes_topics else Level.ERROR,
                f"the dead-letter topic {dead} does not exist"
                + (
                    ": the first dead letter makes it with the brokers' defaults"
                    if makes_topics
                    else f": a message of {subject} that dies stays unfinished, and holds up its partition"
                ),
                f"kafka-topics.sh --bootstrap-server HOST --create --topic {dead}",
            )
        if has_retry_topics and not any(
            name.startswith(f"{subject}.") and name.endswith(".retry") for name in known
        ):
            yield Finding(
                Level.ERROR,
                f"the retry topic {subject}.GROUP.retry does not exist, but retry_topic is on",
                f"kafka-topics.sh --bootstrap-server HOST --create --topic {subject}.GROUP.retry",
            )


def topic_findings(
    topic: TopicFacts,
    *,
    nodes: int,
    is_dead: bool,
    offsets_kept_s: float | None,
    horizon_s: float | None,
) -> Iterator[Finding]:
    """What the copies and settings of a topic mean for its records.

    Args:
        topic: what the cluster tells.
        nodes: the number of brokers.
        is_dead: whether it has dead letters.
        offsets_kept_s: how long the offsets of a group without members are kept, in seconds; None: it is not told.
        horizon_s: the longest time after which a message can be redelivered, in seconds; None: unknown.
    """
    found = [*_copies(topic, nodes), *_removal(topic, is_dead=is_dead)]
    if not is_dead and topic.settings is not None:
        found += _redelivery(topic, offsets_kept_s, horizon_s)
    if topic.settings is None:
        found.append(
            Finding(
                Level.ADVICE,
                f"this user may not read the settings of {topic.name}: its retention is not looked at",
                "kafka-configs.sh --describe --entity-type topics, or let him DESCRIBE_CONFIGS",
            )
        )
    yield from found or [Finding(Level.OK, f"the topic {topic.name} keeps its records")]


def _copies(topic: TopicFacts, nodes: int) -> Iterator[Finding]:
    least = topic.number("min.insync.replicas")
    if least is not None and topic.in_sync < least:
        yield Finding(
            Level.ERROR,
            f"{topic.name} takes no record: {topic.in_sync} of its copies are up to date, and min.insync.replicas is "
            f"{least:.0f}",
            "start the brokers that are down, or lower min.insync.replicas",
        )
    elif topic.in_sync < topic.replicas:
        yield Finding(
            Level.WARNING,
            f"{topic.replicas - topic.in_sync} of {topic.replicas} copies of {topic.name} are not up to date",
            "kafka-topics.sh --describe --under-replicated-partitions",
        )
    if nodes > 1 and topic.replicas == 1:
        yield Finding(
            Level.WARNING,
            f"{topic.name} has one copy: its records are lost with the disk of one broker",
            "kafka-reassign-partitions.sh gives it three",
        )
    elif topic.replicas > 1 and least == 1:
        yield Finding(
            Level.WARNING,
            f"{topic.name} has {topic.replicas} copies, but min.insync.replicas=1: a confirmed record may be in one",
            f"{_CONFIGS} {topic.name} --add-config min.insync.replicas=2",
        )
    elif topic.replicas > 1 and least == topic.replicas:
        yield Finding(
            Level.ADVICE,
            f"{topic.name} takes no record while one broker is down: min.insync.replicas is the number of copies",
            "min.insync.replicas=2 of three copies",
        )
    if (topic.settings or {}).get("unclean.leader.election.enable") == "true":
        yield Finding(
            Level.WARNING,
            f"{topic.name} may lose confirmed records: unclean.leader.election.enable is on",
            f"{_CONFIGS} {topic.name} --add-config unclean.leader.election.enable=false",
        )


def _removal(topic: TopicFacts, *, is_dead: bool) -> Iterator[Finding]:
    """Whether records are removed before they are processed, or dead letters before a person has looked."""
    what = "dead letters" if is_dead else "records"
    if topic.compacts:
        yield Finding(
            Level.WARNING,
            f"{topic.name} is compacted: {what} go when a later one has their key, processed or not",
            f"{_CONFIGS} {topic.name} --add-config cleanup.policy=delete",
        )
    size = topic.number("retention.bytes")
    if topic.deletes and size is not None and size >= 0:
        yield Finding(
            Level.WARNING,
            f"{topic.name} removes {what} above {size:,.0f} bytes in a partition, processed or not",
            f"{_CONFIGS} {topic.name} --add-config retention.bytes=-1",
        )
    longer = f"{_CONFIGS} {topic.name} --add-config retention.ms={'-1' if is_dead else '604800000'}"
    if is_dead and topic.kept_s < math.inf:
        yield Finding(
            # A week is the default of the brokers.
            Level.WARNING if topic.kept_s < 7 * _DAY_S else Level.ADVICE,
            f"{topic.name} removes dead letters after {_in_days(topic.kept_s)}, looked at or not",
            longer,
        )
    elif topic.kept_s < _DAY_S:
        yield Finding(
            Level.WARNING,
            f"{topic.name} removes records after {_in_days(topic.kept_s)}: a consumer that is down for longer loses "
            "some",
            longer,
        )


def _redelivery(
    topic: TopicFacts, offsets_kept_s: float | None, horizon_s: float | None
) -> Iterator[Finding]:
    """Whether records can come again for longer than keys are kept: after an offset was reset or is lost."""
    kept = "for good" if topic.kept_s == math.inf else f"for {_in_days(topic.kept_s)}"
    alone = (
        "" if offsets_kept_s is None else f" after {_in_days(offsets_kept_s)} without a member of the group"
    )
    if horizon_s is None and offsets_kept_s is not None and offsets_kept_s < topic.kept_s:
        yield Finding(
            Level.ADVICE,
            f"{topic.name} keeps records {kept}, longer than the brokers keep offsets: all of them come again{alone}",
            "--redelivery-horizon checks whether keys are kept for that long; or raise offsets.retention.minutes",
        )
    elif horizon_s is not None and topic.kept_s > horizon_s:
        yield Finding(
            Level.WARNING,
            f"{topic.name} keeps records {kept}, longer than --redelivery-horizon: they come again when offsets are "
            f"reset, or lost{alone}",
            "keep keys for as long (retention_s), or records for less (retention.ms)",
        )


def _in_days(duration_s: float) -> str:
    for unit, size in (("days", _DAY_S), ("h", 3600.0), ("min", 60.0)):
        if duration_s >= 2 * size:
            return f"{duration_s / size:.3g} {unit}"
    return f"{duration_s:.3g} s"
