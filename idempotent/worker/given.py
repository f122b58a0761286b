"""Checks of what a Worker is given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeAlias

from idempotent.choices import function
from idempotent.errors import ConfigurationError
from idempotent.keys import consumer_named
from idempotent.message import Message
from idempotent.outcomes import Result
from idempotent.registry import Registry

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
