"""Handler: a handler function, and the parameters that its signature shows."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from idempotent.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler function and how to call it.

    Attributes:
        function: the plain function.
        takes: the type of its second parameter, Session or Connection; None: it has no second parameter.
        batch: its first parameter is a list of messages.
    """

    function: Callable[..., Any]
    takes: type | None
    batch: bool

    @property
    def name(self) -> str:
        """Module and qualified name, for errors and logs."""
        code = _code(self.function)
        return f"{code.__module__}.{code.__qualname__}"


def handler_of(function: Callable[..., Any], *, batch: bool) -> Handler:
    """Read a handler's signature.

    Raises:
        ConfigurationError: the function is async or a generator, or takes other parameters than (message) or
            (message, session).
    """
    code = _code(function)
    name = code.__qualname__
    if inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code):
        raise ConfigurationError(
            f"{name} is an `async def` handler, which is not supported yet; use `def` and run "
            "coroutines with asyncio.run()"
        )
    if inspect.isgeneratorfunction(code):
        raise ConfigurationError(
            f"{name} is a generator: calling it would do nothing; use `return`, not `yield`"
        )
    positional = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    if len(positional) not in (1, 2):
        raise ConfigurationError(
            f"{name} must take (message) or (message, session), but takes {len(positional)} parameters"
        )
    return Handler(function, _second(code, positional[1].name, name) if positional[1:] else None, batch)


def _code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The `def` that a partial or a callable object calls."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if hasattr(function, "__qualname__") else type(function).__call__


def _second(function: Callable[..., Any], parameter: str, name: str) -> type:
    # Imported here: a consumer without a session does not need SQLAlchemy.
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

    try:
        annotation = typing.get_type_hints(function).get(parameter, Session)
    except NameError:  # the annotation's name is imported only under TYPE_CHECKING
        annotation = function.__annotations__.get(parameter, Session)
    if isinstance(annotation, str):
        by_name = {"Session": Session, "Connection": Connection}
        annotation = by_name.get(annotation.rpartition(".")[2], annotation)
    if isinstance(annotation, type) and issubclass(annotation, (Session, Connection)):
        return annotation
    raise ConfigurationError(
        f"the second parameter of {name} must be an SQLAlchemy Session or Connection, not {annotation!r}"
    )
