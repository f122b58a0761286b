"""Handler: a handler function, and the parameters that its signature shows."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from idempotent.codecs import read_annotation
from idempotent.errors import ConfigurationError, MissingExtraError, described
from idempotent.message import Message
from idempotent.processing.body import has_body, is_body, taking_body


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler function and how to call it.

    Attributes:
        function: the plain function.
        session_type: the type of its last parameter, Session or Connection, of an `async def` AsyncSession or
            AsyncConnection; None: it takes no session.
        batch: its first parameter is a list of messages.
        is_async: it is an `async def`.
        call: what is called with the message, and a session if it takes one, where that is not the function itself.
    """

    function: Callable[..., Any]
    session_type: type | None
    batch: bool
    is_async: bool
    call: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        """Module and qualified name, for errors and logs."""
        return f"{self.code.__module__}.{self.code.__qualname__}"

    @property
    def code(self) -> Callable[..., Any]:
        """The `def` behind the function, if that is a partial or a callable object."""
        return _code(self.function)


def handler_of(function: Callable[..., Any], *, batch: bool) -> Handler:
    """Read a handler's signature.

    Raises:
        ConfigurationError: a class or no function, a generator, or a function with other parameters than
            (message), (message, session), (body), (body, message), (body, session) or (body, message, session).
    """
    if isinstance(function, type) or not callable(function):
        raise ConfigurationError(
            f"a handler is a function that takes a message, not {function!r}; of a class, make an instance with "
            "__call__(self, message)"
        )
    code, is_async = _runnable(function)
    _refuse_optional_session(function, code, is_given=False)
    name = code.__qualname__
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
    body = _body_in(code, positional[0].name, name, batch=batch) if positional else None
    with_message = body is not None and bool(positional[1:]) and _is_message(code, positional[1].name)
    rest = positional[1 + with_message :]
    if not positional or len(rest) > 1:
        forms = "(message) or (message, session)"
        if body is not None:
            forms = "(body), (body, message), (body, session) or (body, message, session)"
        raise ConfigurationError(f"{name} must take {forms}, but takes {len(positional)} parameters")
    session_type = _last(code, rest[0].name, name, is_async=is_async) if rest else None
    call = None if body is None else taking_body(function, body, name, with_message=with_message)
    return Handler(function, session_type, batch, is_async, call)


def _body_in(code: Callable[..., Any], parameter: str, name: str, *, batch: bool) -> Any:
    """The annotation of the first parameter, if it takes a body; None: it takes the message.

    Raises:
        ConfigurationError: it takes bodies where a handler gets none, or its name cannot be read.
    """
    annotation = getattr(inspect.unwrap(code), "__annotations__", {}).get(parameter)
    if isinstance(annotation, str):
        # Alone: the name of another parameter's session may be imported only under TYPE_CHECKING.
        try:
            annotation = read_annotation(code, annotation)
        except Exception as error:
            if _is_message(code, parameter):
                return None
            raise ConfigurationError(
                f"the first parameter of {name} is annotated with {annotation}, which cannot be read "
                f"({described(error)}): import the name at run time, not under TYPE_CHECKING, and define it at the top "
                "of a module"
            ) from error
    if is_body(annotation) and not batch:
        return annotation
    if has_body(annotation):
        raise ConfigurationError(
            f"the first parameter of {name} is annotated with {annotation!r}: a handler takes one body, of a "
            "dataclass, a pydantic model or a msgspec Struct; with batch=True it takes a list[Message]"
        )
    return None


def _is_message(code: Callable[..., Any], parameter: str) -> bool:
    """Whether a parameter is annotated with `Message`, or a list or the like of it."""
    return any(
        each.rpartition(".")[2] == Message.__name__ if isinstance(each, str) else each is Message
        for each in _members(_annotation(code, parameter))
    )


def function_of(function: Callable[..., Any]) -> tuple[Handler, str | None]:
    """Read the signature of a function that takes what it likes, and the name of its parameter for a session, if any.

    Raises:
        ConfigurationError: a class, no function, a generator, or two parameters for a session.
    """
    if isinstance(function, (staticmethod, classmethod)):
        raise ConfigurationError(f"write @idempotent below @{type(function).__name__}, not above it")
    if isinstance(function, type) or not callable(function):
        raise ConfigurationError(f"@idempotent decorates a function or an `async def`, not {function!r}")
    code, is_async = _runnable(function)
    _refuse_optional_session(function, code, is_given=True)
    kinds: tuple[type, ...] = ()
    found: dict[str, type] = {}
    for name in inspect.signature(function).parameters:
        session_type = _session_type(_annotation(code, name))
        if session_type is not None:
            kinds = kinds or _kinds(is_async=is_async)
            if not issubclass(session_type, kinds):
                raise _of_another_kind(
                    code.__qualname__, f"parameter {name}", session_type, is_async=is_async
                )
            found[name] = session_type
    if len(found) > 1:
        raise ConfigurationError(f"{code.__qualname__} has two parameters for a session: {', '.join(found)}")
    parameter, session = next(iter(found.items()), (None, None))
    return Handler(function, session, batch=False, is_async=is_async), parameter


def _runnable(function: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """The `def` behind a callable, and whether it is an `async def`. Refuses those of which a call runs nothing."""
    code = _code(function)
    is_async = inspect.iscoroutinefunction(code)
    _refuse_hidden_coroutine(code, is_async=is_async)
    if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
        raise ConfigurationError(
            f"{code.__qualname__} is a generator: calling it would do nothing; use `return`, not `yield`"
        )
    return code, is_async


def _refuse_hidden_coroutine(code: Callable[..., Any], *, is_async: bool) -> None:
    """Refuse a decorator that hides an `async def`: calling it would run nothing of the handler."""
    inner = inspect.unwrap(code)
    if not is_async and inspect.iscoroutinefunction(inner):
        raise ConfigurationError(
            f"{code.__qualname__} is an `async def` behind a decorator that returns a plain function: let the "
            "decorator return an `async def` that awaits it"
        )


def _code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The `def` that a partial or a callable object calls."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if hasattr(function, "__qualname__") else type(function).__call__


def _refuse_optional_session(
    function: Callable[..., Any], code: Callable[..., Any], *, is_given: bool
) -> None:
    """Refuse a parameter for a session that may be None; `is_given`: not one of the type itself, which has one."""
    for parameter in inspect.signature(function).parameters.values():
        annotation = _annotation(code, parameter.name)
        if parameter.default is not None or (is_given and _session_type(annotation)):
            continue
        for kind in filter(None, map(_session_type, _members(annotation))):
            raise ConfigurationError(
                f"{code.__qualname__}: the parameter {parameter.name!r} has the default None, so it would get None "
                f"instead of a session; write `{parameter.name}: {kind.__name__}` without a default"
            )


def _last(function: Callable[..., Any], parameter: str, name: str, *, is_async: bool) -> type:
    kinds = _kinds(is_async=is_async)
    annotation = _annotation(function, parameter)
    found = _session_type(kinds[0] if annotation is None else annotation)
    if found is not None and issubclass(found, kinds):
        return found
    wanted = " or ".join(kind.__name__ for kind in kinds)
    if found is not None:
        raise _of_another_kind(name, "last parameter", found, is_async=is_async)
    raise ConfigurationError(
        f"the last parameter of {name} must be an SQLAlchemy {wanted}, not {annotation!r}"
    )


def _of_another_kind(name: str, which: str, found: type, *, is_async: bool) -> ConfigurationError:
    wanted = " or ".join(kind.__name__ for kind in _kinds(is_async=is_async))
    this, other = ("an `async def`", "a plain `def`") if is_async else ("a plain `def`", "an `async def`")
    return ConfigurationError(
        f"{name} is {this}, but its {which} is of type {found.__name__}: let it take {wanted}, or write {other}"
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
    """The session or connection that an annotation names, if it does."""
    if not isinstance(annotation, (str, type)) or (
        isinstance(annotation, type) and not _is_of_sqlalchemy(annotation)
    ):
        return None
    for is_async in (False, True) if _may_be_async(annotation) else (False,):
        for kind in _kinds(is_async=is_async):
            if isinstance(annotation, str) and annotation.rpartition(".")[2] == kind.__name__:
                return kind
            if isinstance(annotation, type) and issubclass(annotation, kind):
                return annotation
    return None


def _is_of_sqlalchemy(kind: type) -> bool:
    return any(base.__module__.partition(".")[0] == "sqlalchemy" for base in kind.__mro__)


def _may_be_async(annotation: str | type) -> bool:
    """Whether an annotation may name an AsyncSession or AsyncConnection, which can only be imported with greenlet."""
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2].startswith("Async")
    return "sqlalchemy.ext.asyncio" in sys.modules


def _kinds(*, is_async: bool) -> tuple[type, ...]:
    """What a handler may take beside its message."""
    # Imported here: a consumer without a session does not need SQLAlchemy.
    if is_async:
        try:
            from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
        except ImportError as error:
            raise MissingExtraError("greenlet", "postgres-async,mysql-async") from error
        return AsyncSession, AsyncConnection
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

    return Session, Connection
