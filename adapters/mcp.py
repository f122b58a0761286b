"""MCP: `@idempotent_tool`, for a tool of an MCP server that takes effect once for each key."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, TypeVar, cast

from idempotent.adapters.plug_in import Answered
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.codecs import Codec
from idempotent.errors import (
    ConfigurationError,
    DeadKeyError,
    FingerprintMismatchError,
    IdempotentError,
    InProgressError,
    MissingExtraError,
    MissingKeyError,
    ResultNotStoredError,
    SchemaError,
    StoreError,
)
from idempotent.function import Id, idempotent, key_of
from idempotent.keys import id_of
from idempotent.policy import OnCancel, OnExpiredLease
from idempotent.processing.handler import function_of
from idempotent.processing.options import Exceptions, ExpiredLeasePolicy

try:
    from mcp.server.auth.middleware.auth_context import get_access_token
    from mcp.server.auth.provider import principal_components
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp_types import CallToolResult, InputRequiredResult
except ImportError as error:
    raise MissingExtraError("mcp", "mcp") from error

__all__ = ["client", "idempotent_tool"]

F = TypeVar("F", bound=Callable[..., Any])

# A client gives up after half a minute or so. Most tools end before, and the model need not ask again.
_WAIT_S: Final = 10.0


def client() -> str | None:
    """The default of `scope=`: client, issuer and subject of the access token; None: the caller has no token.

    Raises:
        ConfigurationError: the token names no subject, so all users of one client would share their keys.
    """
    token = get_access_token()
    if token is None:
        return None
    if token.subject is None:
        raise ConfigurationError(
            "the access token has no subject, so it does not say whose key it is: let the TokenVerifier set "
            "AccessToken.subject, or give idempotent_tool(scope=...), such as a function that returns its client_id"
        )
    return json.dumps(principal_components(token), separators=(",", ":"))


def idempotent_tool(
    checker: AbstractIdempotentChecker | str,
    *,
    group: str,
    key: str | Callable[..., Id | None],
    scope: Callable[[], str | None] = client,
    name: str | None = None,
    fingerprint: Callable[..., Id | None] | None = None,
    codec: Codec | None = None,
    wait_s: float = _WAIT_S,
    max_attempts: int | None = None,
    dead_for: Exceptions = (),
    on_expired_lease: ExpiredLeasePolicy | Literal["retry", "park"] = OnExpiredLease.RETRY,
    on_cancel: OnCancel | Literal["retry", "park", "finish"] = OnCancel.FINISH,
) -> Callable[[F], F]:
    """`@idempotent` for a tool, below `@server.tool()`: what it raises is a `ToolError`, whose text the model reads.

    The tool's schema stays the same. A parameter for the session of a `TransactionalSqlChecker` is not in it. The
    tool's own exceptions pass through unchanged, and its key is free again. So it is if the tool returns a
    `CallToolResult` that is an error, or an `InputRequiredResult`; a transaction is then rolled back.

    Args:
        checker: see `idempotent`, as all options without a word here.
        group: see there.
        key: the name of an argument that the model repeats when it repeats a call, or a function of the arguments.
            Not the id of the request: that is new in each call.
        scope: who a key belongs to: returns the user's id, and None where all callers are one user. No user is given
            the result of another user's call.
        name: see there.
        fingerprint: see there.
        codec: see there.
        wait_s: seconds that a call waits for another one with its key, before the model is told to ask again.
        max_attempts: see there.
        dead_for: see there.
        on_expired_lease: see there.
        on_cancel: what it means that the client cancels the call of an `async def`. A plain function runs to its end.

    Raises:
        ConfigurationError: as `idempotent` does.
    """

    def decorate(function: F) -> F:
        handler, session = function_of(function)
        # The SDK runs it in a thread, which Python cannot cancel.
        finishes = on_cancel in (OnCancel.FINISH, OnCancel.FINISH.value)
        ends = OnCancel.RETRY if finishes and not handler.is_async else on_cancel
        owned = _owned(key_of(key, inspect.signature(function), session), scope)
        protected = idempotent(
            checker,
            group=group,
            key=owned,
            name=name,
            fingerprint=fingerprint,
            codec=codec,
            wait_s=wait_s,
            max_attempts=max_attempts,
            dead_for=dead_for,
            on_expired_lease=on_expired_lease,
            on_cancel=ends,
        )(_refusing(function))
        return cast("F", _speaking(protected))

    return decorate


def _owned(key: Callable[..., Id | None], scope: Callable[[], str | None]) -> Callable[..., Id | None]:
    """The key of a call, behind whom it belongs to."""

    def of(*args: Any, **kwargs: Any) -> Id | None:
        found, owner = key(*args, **kwargs), scope()
        if found in (None, "", b""):
            return found
        try:
            text = id_of(found, "a key")
        except TypeError as error:
            raise ToolError(
                "Nothing was done: the argument that identifies the call must be a text or a whole number."
            ) from error
        if owner is None:
            return text
        before = json.dumps(owner)  # which shows where it ends
        return before.encode() + text if isinstance(text, bytes) else before + text

    return of


def _checked(value: Any) -> Any:
    if isinstance(value, InputRequiredResult) or (isinstance(value, CallToolResult) and value.is_error):
        raise Answered(value)
    return value


def _refusing(function: Callable[..., Any]) -> Callable[..., Any]:
    """The tool, which raises what it returns instead of an effect."""
    return _around(function, _checked, lambda error: error, ())


def _speaking(function: Callable[..., Any]) -> Callable[..., Any]:
    """The protected tool, whose errors a model understands."""
    return _around(function, lambda value: value, _said, (IdempotentError, Answered))


def _said(error: BaseException) -> Any:
    """What a call returns for an error; raises it, or the `ToolError` that says it."""
    if isinstance(error, Answered):
        return error.answer
    text = told(error)
    if text is None:
        raise error
    raise ToolError(text) from error


def told(error: BaseException) -> str | None:
    """What the model is told of an error; None: it is not one of those that it can do something about.

    No command and no key of the store: the model would try them.
    """
    match error:
        case InProgressError():
            return (
                "This call is still running. Call again in "
                f"{error.retry_after_s or 1:g} s, with the same arguments, to get its result."
            )
        case FingerprintMismatchError():
            return (
                "This key was used before with other arguments, and nothing was done now. To repeat that call, give "
                "its arguments. For another effect, give a new key."
            )
        case DeadKeyError():
            return (
                "It is unknown whether this call took effect, or it was given up. Do not repeat it, neither with these "
                "arguments nor with a new key. Ask a person to look into it."
            )
        case ResultNotStoredError():
            return "This call was done before, and its result was not kept. Do not repeat it, and do not use a new key."
        case MissingKeyError():
            return "Nothing was done: the argument that identifies the call is empty. Give it a value."
        case SchemaError():
            return (
                "The server cannot record this call: its database lacks the tables of keys, or they differ. Calling "
                "again does not help, nor does a new key. Ask a person to make the tables."
            )
        case StoreError():
            return (
                "It is unknown whether this call took effect, because a database does not answer. Call again later, "
                "with the same arguments; that is safe. Do not use a new key."
            )
    return None


def _around(
    function: Callable[..., Any],
    after: Callable[[Any], Any],
    failed: Callable[[BaseException], Any],
    caught: tuple[type[BaseException], ...],
) -> Callable[..., Any]:
    """A function with the same signature, whose value or error is looked at."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            try:
                return after(await cast("Awaitable[Any]", function(*args, **kwargs)))
            except caught as error:
                return failed(error)

        return call_async

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return after(function(*args, **kwargs))
        except caught as error:
            return failed(error)

    return call
