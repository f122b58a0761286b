"""Handlers of both kinds from one plain function."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest


def as_plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, which a worker runs in a thread."""
    return function


def as_async(function: Callable[..., Any]) -> Callable[..., Any]:
    """An `async def`, which a worker runs in a task; the function may block."""

    @functools.wraps(function)
    async def handle(*arguments: Any) -> Any:
        return await asyncio.to_thread(function, *arguments)

    return handle


KINDS = [pytest.param(as_plain, id="plain"), pytest.param(as_async, id="async")]
