"""Enters the services of a worker around its work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager


@contextmanager
def inside(services: Iterable[AbstractContextManager[object]]) -> Iterator[None]:
    """Enter all services, and leave them in reverse order.

    None of them may hide an error: the worker would seem to have ended in order.
    """
    error: BaseException | None = None
    with ExitStack() as entered:
        try:
            for service in services:
                entered.enter_context(service)
            yield
        except BaseException as raised:
            error = raised
            raise
    if error is not None:
        raise error
