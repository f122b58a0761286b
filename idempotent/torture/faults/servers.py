"""Servers: the URLs of broker and store, and the functions that harm them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of a run.

    Attributes:
        broker_url: the adapter's URL.
        checker_url: the checker's URL.
        restart_broker: kills the broker, leaves it down for the given seconds, starts it, and returns when it answers.
        restart_store: the same for the store, which must keep everything that it had acknowledged.
        full_disk: while the context lasts, the disk of the store is full.
    """

    broker_url: str
    checker_url: str
    restart_broker: Callable[[float], object] | None = None
    restart_store: Callable[[float], object] | None = None
    full_disk: Callable[[], AbstractContextManager[object]] | None = None
