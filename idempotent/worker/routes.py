"""Which consumer gets a message of a subject."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from idempotent.adapters.base import Adapter
from idempotent.consumer import AnyConsumer
from idempotent.errors import ConfigurationError, MessageError
from idempotent.policy import OnExpiredLease
from idempotent.registry import Registry


def routes(registry: Registry, names: Collection[str] | None, batch_size: int) -> Mapping[str, AnyConsumer]:
    """The consumers that a worker serves, by subject.

    Args:
        registry: the consumers; all of them are checked.
        names: serve only these, named `subject:group`; None: all.
        batch_size: how many messages the worker processes together.

    Raises:
        ConfigurationError: no consumers, unknown names, two groups of one subject, or `on_expired_lease` other than
            `retry` with batches.
    """
    registry.check()
    known = registry.consumers
    unknown = sorted(set(names or ()) - set(known))
    if unknown:
        raise ConfigurationError(
            f"no consumer is named {', '.join(unknown)}; known: {', '.join(sorted(known)) or 'none'}"
        )
    by_subject: dict[str, AnyConsumer] = {}
    for name, consumer in known.items():
        if names is not None and name not in names:
            continue
        other = by_subject.setdefault(consumer.subject, consumer)
        if other is not consumer:
            # A delivery is settled once, and a queue, a durable subscription or a group.id belongs to one group.
            raise ConfigurationError(
                f"{other.name} and {name} consume the same subject: a worker serves one group of a subject. Where each "
                "group gets all messages (a Kafka topic, a durable ActiveMQ topic), run one worker for each, with "
                f"consumers=[{other.name!r}] and consumers=[{name!r}] (idempotent run --consumers). Where consumers "
                f"share the messages (a queue), two workers would split them: give each group a queue of its own, such "
                f"as {f'{consumer.subject}.{other.group}'!r} and {f'{consumer.subject}.{consumer.group}'!r}, and bind "
                "both to the exchange that the producer publishes to"
            )
        if batch_size > 1 and consumer.options.on_expired_lease is not OnExpiredLease.RETRY:
            raise ConfigurationError(
                f"{name}: on_expired_lease other than 'retry' cannot go with batch_size={batch_size}: when a process "
                "dies, it is unknown which messages of its batch ran; use batch_size=1"
            )
    if not by_subject:
        raise ConfigurationError(
            "no consumers to serve: import the module that has the functions decorated with @consumer"
        )
    return by_subject


def check_dead_letters(adapter: Adapter, subjects: Iterable[str]) -> None:
    """Check that no consumer gets its own dead letters: a failing one would send each back to itself, for ever.

    Raises:
        ConfigurationError: the adapter sends the dead letters of a subject to that subject.
    """
    for subject in subjects:
        if adapter.dead_letter_subject(subject) in (subject, f"/queue/{subject}"):
            raise ConfigurationError(
                f"the dead letters of {subject!r} would go to {subject!r} itself, and run again without end; choose "
                "another dead-letter queue, topic or destination"
            )


def unknown_subject(subject: str, known: Collection[str]) -> MessageError:
    """The error of a message that no consumer of the worker takes."""
    return MessageError(f"no consumer of subject {subject!r}; known: {', '.join(sorted(known))}")
