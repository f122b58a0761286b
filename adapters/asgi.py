"""IdempotencyKeyMiddleware: requests with an `Idempotency-Key` take effect once, in any ASGI application."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack

from idempotent.adapters.asgi_request import (
    App,
    Receive,
    Request,
    Scope,
    Send,
    Settings,
    requests,
)
from idempotent.adapters.idempotency_key import (
    HEADER,
    Answer,
    AnswerCodec,
    NotStoredError,
    Options,
    Rules,
    fingerprint,
)
from idempotent.adapters.plug_in import async_session, caller, consumer_of
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.transactions import TransactionHooks
from idempotent.consumer import AsyncConsumer
from idempotent.errors import ConfigurationError, StoreError
from idempotent.function import body_of
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result
from idempotent.policy import OnExpiredLease
from idempotent.processing.holding import repeat_while_held_async
from idempotent.processing.options import ExpiredLeasePolicy
from idempotent.registry import default_registry

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

__all__ = ["IdempotencyKeyMiddleware", "authorization", "session"]


def authorization(scope: Scope) -> str:
    """For `scope=`: a key belongs to who sends this `Authorization`. It is hashed, and empty without one.

    Not for tokens that are renewed between a request and its repetition: the repetition would belong to another user,
    and run.
    """
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    return b"\n".join(values).decode("latin-1")


async def session() -> AsyncIterator[AsyncSession]:
    """The AsyncSession that commits with the key and the answer, as a dependency: `Depends(session)`.

    In a request without a key it is one of a transaction of its own, which commits before the answer is sent. An answer
    that is not stored, such as a 500, rolls it back. So does an exception that passes through the dependency, such as
    an HTTPException: then the key is free, too.

    Raises:
        ConfigurationError: the application has no IdempotencyKeyMiddleware, or its checker no transaction; or that of a
            request without a key has ended.
        StoreError: the database did not answer.
    """
    request = requests.get()
    if request is None:
        raise ConfigurationError(
            "session() is for requests that pass through an IdempotencyKeyMiddleware; add it to the application"
        )
    given = await request.session()
    try:
        yield given
    except Exception:
        request.is_undone = True
        raise


class IdempotencyKeyMiddleware:
    """Runs a request once for each `Idempotency-Key` of a user, and repeats its answer for its copies.

    The checker's `retention_s` says for how long. A client that hangs up does not end what runs.

    Args:
        app: the application.
        checker: an instance, a URL, or the name of one that is registered before the first request. A transactional one
            has an AsyncEngine.
        scope: who a key belongs to: called with the ASGI scope, returns the user's id; or `authorization`. Nobody is
            given the answer to another one's request.
        group: part of the key, such as the service.
        on_expired_lease: what to do if the process died in a request: see `@consumer`.
        options: which requests are protected, which answers are stored, and so on: see `Options`.

    Raises:
        ConfigurationError: invalid options; a transactional checker without an AsyncEngine (if named: at a request).
    """

    def __init__(
        self,
        app: App,
        *,
        checker: AbstractIdempotentChecker | str,
        scope: Callable[[Scope], str],
        group: str,
        on_expired_lease: ExpiredLeasePolicy | Literal["retry", "park"] = OnExpiredLease.RETRY,
        **options: Unpack[Options],
    ) -> None:
        if not callable(scope):
            raise ConfigurationError(
                "scope is a function of the ASGI scope that returns the user's id, or `authorization`, not "
                f"{type(scope).__name__}"
            )
        self._rules = Rules(**options)
        self._owner_of = scope
        self._flights: dict[str, _Flight] = {}
        self._app = app
        self._checker = checker
        self._declare = partial(
            consumer_of,
            "http",
            checker=checker,
            group=group,
            codec=AnswerCodec(),
            fingerprint=body_of,
            on_expired_lease=on_expired_lease,
            on_cancel="finish",
        )
        self._settings: Settings | None = None
        if isinstance(checker, str) and "://" not in checker:
            self._declare(caller(None, is_async=True))  # checks the options: the name may be registered later
        else:
            self._bind()

    def _bind(self) -> Settings:
        """Look up the checker, whose name may mean another one by now.

        Raises:
            UnknownCheckerError: no checker of that name is registered.
            ConfigurationError: it is a transactional one without an AsyncEngine.
        """
        made = default_registry.resolve(self._checker)
        if self._settings is not None and self._settings.checker is made:
            return self._settings
        session_type = async_session(made, "IdempotencyKeyMiddleware")
        transactions = made if isinstance(made, TransactionHooks) else None
        self._consumer: AsyncConsumer = self._declare(caller(session_type, is_async=True))
        self._settings = Settings(self._app, made, transactions, session_type, self._rules)
        return self._settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; a websocket and the lifespan pass through."""
        settings = self._bind()
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        values = [value for name, value in scope["headers"] if name.lower() == HEADER]
        if not self._rules.protects(scope["method"], scope["path"]) or not (values or self._rules.required):
            await self._unprotected(settings, scope, receive, send)
            return
        key = self._rules.key(values, lambda: self._owner_of(scope))
        answer = (
            key if isinstance(key, Answer) else await self._protected(settings, scope, receive, send, key)
        )
        if answer is not None:
            await _send_answer(send, answer.status, answer.headers, answer.body or b"")

    async def _unprotected(self, settings: Settings, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(settings, scope, receive, send, body=None)
        if settings.transactions is None:
            token = requests.set(request)
            try:
                await settings.app(scope, receive, send)
            finally:
                requests.reset(token)
            return
        try:
            await request.run()
            await request.end_own(commit=True)
        except NotStoredError as error:
            await request.end_own(commit=False)
            if error.raised is not None:
                raise error.raised from None
        except StoreError:
            if request.has_begun:
                raise
            await request.drop()
            answer = self._rules.answer_to(Result(Outcome.UNAVAILABLE), str)
            await _send_answer(send, answer.status, answer.headers, answer.body or b"")
            return
        finally:
            await request.end_own(commit=False)
        await request.finish()

    async def _protected(
        self, settings: Settings, scope: Scope, receive: Receive, send: Send, key: str
    ) -> Answer | None:
        """The answer to a request with a key; None: it has been sent, or the client has gone."""
        body = await self._body(scope, receive)
        if body is None or isinstance(body, Answer):
            return body
        content = fingerprint(scope["method"], scope["path"], scope.get("query_string", b""), body)
        message = Message(self._consumer.subject, content, id=key)
        named = self._consumer.key_of(key)
        outer = requests.get()
        if outer is not None and outer.key == named and outer.checker is settings.checker:
            raise ConfigurationError(
                "a request passes through two IdempotencyKeyMiddlewares with one checker and group, and the inner one "
                "would wait for the outer one: remove one of them"
            )
        request = Request(settings, scope, receive, send, body=body, key=named)
        result = await self._result_of_copy(key, content)
        if result is not None:
            self._consumer.report(message, result)  # as if it had asked the store
            return self._answer_to(message, result)
        flight = self._flights[key] = _Flight(content)
        try:
            result = await self._result_of(message, request, flight)
            flight.result = result
        except asyncio.CancelledError:
            request.leave()
            raise
        except BaseException:
            await request.drop()
            raise
        finally:
            del self._flights[key]
            flight.ended.set()
            flight.changed.set()
        if result.outcome is Outcome.PROCESSED:
            await request.finish()
            return None
        if isinstance(result.error, NotStoredError):
            if result.error.raised is not None:
                raise result.error.raised from None
            await request.finish()
            return None
        await request.drop()
        if result.error is not None and (request.has_begun or result.is_handler_error):
            raise result.error  # so that the server ends an answer that it has begun as one that is not whole
        return self._answer_to(message, result)

    async def _result_of(self, message: Message, request: Request, flight: _Flight) -> Result:
        """The result of a request that no other one of this process has the key of."""

        async def run(*given: Any) -> Answer:
            flight.changed.set()
            return await request.run(*given)

        process = partial(self._consumer.process, message, call=run, session=request.session_type)
        return await repeat_while_held_async(process, self._rules.wait_s)

    async def _result_of_copy(self, key: str, content: bytes) -> Result | None:
        """The result of a request whose key another request of this process has; None: no request has the key now.

        Copies wait for it in memory: a hundred would take a hundred connections otherwise, and in each other's way.
        """
        until = time.monotonic() + self._rules.wait_s
        while (flight := self._flights.get(key)) is not None:
            await flight.changed.wait()
            if not flight.ended.is_set():
                if flight.content != content:
                    return Result(Outcome.REJECTED)
                with suppress(TimeoutError):
                    # wait_for of Python 3.11 loses a cancellation that comes with the end
                    async with asyncio.timeout(max(until - time.monotonic(), 0)):
                        await flight.ended.wait()
                if not flight.ended.is_set():
                    return Result(Outcome.IN_PROGRESS)
            async with flight.turn:
                await asyncio.sleep(0)
            result = flight.result if flight.content == content else None
            if result is not None and (result.outcome is Outcome.PROCESSED or result.replayed):
                return Result(Outcome.DUPLICATE, value=result.value, replayed=True)
        return None

    def _answer_to(self, message: Message, result: Result) -> Answer:
        """The answer to a request that did not run, or whose end was not recorded."""
        return self._rules.answer_to(result, lambda: self._consumer.key_in(message))

    async def _body(self, scope: Scope, receive: Receive) -> bytes | Answer | None:
        """The whole body of a request; the answer to one that is too long; None: the client has gone."""
        told = [value for name, value in scope["headers"] if name.lower() == b"content-length"]
        size = int(told[0]) if told and told[0].isdigit() else 0
        parts: list[bytes] = []
        read, more = 0, True
        while more and size <= self._rules.max_body:
            event = await receive()
            if event["type"] == "http.disconnect":
                return None
            parts.append(event.get("body", b""))
            read += len(parts[-1])
            size = max(size, read)
            more = event.get("more_body", False)
        if size > self._rules.max_body:
            return self._rules.too_long()
        return b"".join(parts)


class _Flight:
    """What the copies of a request wait for.

    Not one of `processing.flights`, whose calls wait for the end only: a copy is told at once that the application runs
    for another one (409), or for another request (422), and not before, since the store may know the answer already.

    Attributes:
        content: its fingerprint.
        result: what came of it; None: it was cancelled, or has not ended.
        changed: the application runs, or it has ended.
        ended: it has ended.
        turn: of the copies that it wakes, one after the other: a thousand answers at once would hold up other requests.
    """

    def __init__(self, content: bytes) -> None:
        self.content: Final = content
        self.result: Result | None = None
        self.changed: Final = asyncio.Event()
        self.ended: Final = asyncio.Event()
        self.turn: Final = asyncio.Lock()


async def _send_answer(send: Send, status: int, headers: Any, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body, "more_body": False})
