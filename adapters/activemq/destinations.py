"""Destinations: where the messages of a subject are, in ActiveMQ's names."""

from __future__ import annotations

from typing import Final

from idempotent.errors import ConfigurationError

_QUEUE: Final = "/queue/"
_TOPIC: Final = "/topic/"
_WILDCARDS: Final = frozenset({"*", ">"})


def destination_of(subject: str) -> str:
    """`/queue/NAME`, unless the subject is a destination already.

    Raises:
        ConfigurationError: the subject does not name one queue or one topic.
    """
    destination = subject if subject.startswith((_QUEUE, _TOPIC)) else f"{_QUEUE}{subject}"
    name = _name_of(destination)
    if _WILDCARDS & set(name.split(".")) or "," in name:
        # A copy is sent to its destination, and a wildcard would also match the queue of the dead letters.
        raise ConfigurationError(
            f"{subject!r} names several destinations; write a consumer for each one, or forward their messages to one "
            "queue in activemq.xml (compositeQueue)"
        )
    if not name.strip() or "?" in name or name.startswith(("/", "queue://", "topic://")):
        raise ConfigurationError(
            f"{subject!r} is not the name of a queue or topic; write NAME, /queue/NAME or /topic/NAME, without options"
        )
    return destination


def is_topic(destination: str) -> bool:
    """Whether a destination is a topic, where a message without a subscriber is lost."""
    return destination.startswith(_TOPIC)


def dead_letters_of(destination: str) -> str:
    """The default destination for dead letters: always a queue, because a topic keeps no messages."""
    return f"{_QUEUE}{_name_of(destination)}.dead"


def _name_of(destination: str) -> str:
    return destination.removeprefix(_QUEUE).removeprefix(_TOPIC)
