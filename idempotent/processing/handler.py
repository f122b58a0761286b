"""Handler: a handler function, and the parameters that its signature shows."""

from __future__ import annotations

import functools
import inspect
import re
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
        ConfigurationError: a class or no function, async or a generator, or a function with other parameters than
            (message) or (message, session).
    """
    if isinstance(function, type) or not callable(function):
        raise ConfigurationError(
            f"a handler is a function that takes a message, not {function!r}; of a class, make an instance with "
            "__call__(self, message)"
        )
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
    _refuse_optional_session(function, code)
    required = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
    ]
    for parameter in required:
        if parameter.kind is parameter.KEYWORD_ONLY:
            raise ConfigurationError(
                f"{name} requires the keyword {parameter.name}=, which no message gives: write a default, or "
                f"functools.partial({code.__name__}, {parameter.name}=...)"
            )
    positional = [
        parameter
        for parameter in required
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if positional and positional[0].name in ("self", "cls"):
        raise ConfigurationError(
            f"{name} is a method, decorated where no instance exists: decorate a function, or the method of an "
            f"instance, consumer(...)(instance.{code.__name__})"
        )
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


def _refuse_optional_session(function: Callable[..., Any], code: Callable[..., Any]) -> None:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is None and any(map(_session_type, _members(_annotation(code, parameter.name)))):
            raise ConfigurationError(
                f"{code.__qualname__}: the parameter {parameter.name!r} has the default None, so it would get None "
                f"instead of a session; write `{parameter.name}: Session` without a default"
            )


def _second(function: Callable[..., Any], parameter: str, name: str) -> type:
    annotation = _annotation(function, parameter)
    found = _session_type("Session" if annotation is None else annotation)
    if found is not None:
        return found
    raise ConfigurationError(
        f"the second parameter of {name} must be an SQLAlchemy Session or Connection, not {annotation!r}"
    )


def _annotation(function: Callable[..., Any], parameter: str) -> Any:
    """The annotation of a parameter; a text if its name is imported only under TYPE_CHECKING; None: it has none."""
    try:
        return typing.get_type_hints(function).get(parameter)
    except (NameError, TypeError):
        return getattr(function, "__annotations__", {}).get(parameter)


def _members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union such as `Session | None`, or the annotation itself."""
    if isinstance(annotation, str):
        return tuple(re.findall(r"[\w.]+", annotation))
    return typing.get_args(annotation) or (annotation,)


def _session_type(annotation: Any) -> type | None:
    """The Session or Connection that an annotation names, if it does."""
    if not isinstance(annotation, (str, type)):
        return None
    # Imported here: a consumer without a session does not need SQLAlchemy.
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

    if isinstance(annotation, str):
        return {"Session": Session, "Connection": Connection}.get(annotation.rpartition(".")[2])
    return annotation if issubclass(annotation, (Session, Connection)) else None
