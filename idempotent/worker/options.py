"""Checks of what a Worker is given; and its consumers, by subject."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeAlias

from idempotent.consumer import AnyConsumer
from idempotent.errors import ConfigurationError, MessageError
from idempotent.keys import consumer_named
from idempotent.message import Message
from idempotent.outcomes import Result
from idempotent.policy import OnExpiredLease
from idempotent.registry import Registry
from idempotent.validation import function

if TYPE_CHECKING:
    from idempotent.adapters.base import Adapter

Callback: TypeAlias = "Callable[[Message, Result], object]"


def check_registry_and_adapter(registry: Registry, adapter: Adapter) -> None:
    """Refuse another object in the place of the registry, and a class or a URL in that of the adapter.

    Raises:
        ConfigurationError: with what to write.
    """
    if not isinstance(registry, Registry):
        raise ConfigurationError(f"registry must be a Registry, not of type {type(registry).__name__}")
    if isinstance(adapter, (type, str)) or not hasattr(adapter, "receive"):
        raise ConfigurationError(
            f"adapter must be an Adapter, not of type {type(adapter).__name__}: write adapter_from_url(url)"
        )


def check_no_running_loop() -> None:
    """Refuse to block an event loop.

    Raises:
        ConfigurationError: one runs in this thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigurationError("run() would block the event loop of this thread: use `await worker.serve()`")


def checked_names(names: Collection[str] | None) -> Collection[str] | None:
    """The names of the consumers to serve.

    Raises:
        ConfigurationError: a single name, or none.
    """
    if names is None:
        return None
    given: object = names
    if isinstance(given, str) or not isinstance(given, Collection) or not given:
        raise ConfigurationError(
            f"consumers takes a list of names, such as ['orders:billing'], not {names!r}"
        )
    return [consumer_named(str(name)) or str(name) for name in names]


def checked_services(
    services: Iterable[AbstractContextManager[object]], adapter: Adapter
) -> tuple[AbstractContextManager[object], ...]:
    """The services.

    Raises:
        ConfigurationError: one uses the worker's adapter; or one is not a context manager, or they are not in a list.
    """
    if not isinstance(services, Iterable):
        raise ConfigurationError(f"services takes a list of context managers: write [{services!r}]")
    found = tuple(services)
    for service in found:
        if not isinstance(service, AbstractContextManager):
            raise ConfigurationError(f"services takes context managers, not {service!r}")
        if any(each is adapter for each in getattr(service, "adapters", ())):
            raise ConfigurationError(
                f"{type(service).__name__} uses the worker's adapter, which belongs to the worker's thread: give it an "
                "adapter of its own"
            )
    return found


def checked_callback(callback: Callback | None) -> Callback | None:
    """The function that is called with each result.

    Raises:
        ConfigurationError: it cannot be called.
    """
    if callback is None:
        return None
    return function(callback, "on_result", "lambda message, result: ...", takes=2)


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
            ends = (other.group, consumer.group) if other.group != consumer.group else ("1", "2")
            one, two = (f"{consumer.subject}.{end}" for end in ends)
            raise ConfigurationError(
                f"{other.name} and {name} consume the same queue or topic, {consumer.subject}, and a worker serves one "
                "group of it. Where each group gets all messages (a Kafka topic, a durable ActiveMQ topic), run one "
                f"worker for each, with consumers=[{other.name!r}] and consumers=[{name!r}] (idempotent run "
                "--consumers). Where consumers share the messages (a queue), two workers would split them: give each a "
                f"queue of its own, such as {one!r} and {two!r}, and bind both to the exchange that the producer "
                "publishes to"
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
