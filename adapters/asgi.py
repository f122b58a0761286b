"""IdempotencyKeyMiddleware: requests with an `Idempotency-Key` take effect once, in any ASGI application."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeAlias, cast

from idempotent.adapters.idempotency_key import (
    HEADER,
    Answer,
    AnswerCodec,
    BadKeyError,
    Problem,
    fingerprint,
    id_of_key,
    is_final,
    kept,
    key_in,
)
from idempotent.checkers import checker_from_url
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.transactions import TransactionHooks
from idempotent.claims import Claim
from idempotent.consumer import AsyncConsumer
from idempotent.errors import ConfigurationError, DoomedTransactionError, IdempotentError, StoreError
from idempotent.function import body_of, pauses
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result
from idempotent.policy import OnExpiredLease
from idempotent.processing.handler import Handler
from idempotent.processing.options import ExpiredLeasePolicy
from idempotent.registry import default_registry
from idempotent.validation import seconds, whole

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

Scope: TypeAlias = MutableMapping[str, Any]
Event: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

__all__ = ["IdempotencyKeyMiddleware", "authorization", "session"]

_RETRY_AFTER_S: Final = 1
_requests: ContextVar[_Request | None] = ContextVar("idempotent_asgi_request", default=None)
# Applications that work on after their client and their server have gone: the loop alone would not keep them.
_left: Final[set[asyncio.Task[None]]] = set()


def authorization(scope: Scope) -> str:
    """For `scope=`: a key belongs to who sends this `Authorization`. It is hashed, and empty without one.

    Not for tokens that are renewed between a request and its repetition: that would run again, as somebody else's.
    """
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    return b"\n".join(values).decode("latin-1")


async def session() -> AsyncIterator[AsyncSession]:
    """The AsyncSession that commits with the key and the answer, as a dependency: `Depends(session)`.

    In a request without a key it is one of a transaction of its own, which commits before the answer is sent. An answer
    that is not stored, such as a 500, rolls it back. So does an exception that passes through the dependency, such as
    an HTTPException: then the key is free, too.

    Raises:
        ConfigurationError: the application has no IdempotencyKeyMiddleware, or its checker no transaction.
        StoreError: the database did not answer.
    """
    request = _requests.get()
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
        checker: an instance, or a URL. A transactional one has an AsyncEngine.
        scope: who a key belongs to: called with the ASGI scope, returns the user's id; or `authorization`. Nobody is
            given the answer to another one's request.
        group: part of the key, such as the service.
        methods: of the requests that it protects.
        paths: those that it protects, as patterns of `fnmatch`, such as `/orders/*`; None: all.
        required: whether a protected request without a key is refused, with 400; else it runs unprotected.
        wait_s: seconds that a request waits for the answer to one with its key that runs, before it is told so (409).
        store: `final`: answers after which the same request need not be sent again: all but 401, 403, 408, 425, 429 and
            5xx. `all`: those too.
        max_body: bytes of a body that a protected request may have, and up to which an answer is stored.
        on_expired_lease: what to do if the process died in a request: see `@consumer`.
        docs: the address of a page for callers, which problems link to.

    Raises:
        ConfigurationError: invalid options; a transactional checker without an AsyncEngine.
    """

    def __init__(
        self,
        app: App,
        *,
        checker: AbstractIdempotentChecker | str,
        scope: Callable[[Scope], str],
        group: str,
        methods: Collection[str] = ("POST", "PATCH"),
        paths: Collection[str] | None = None,
        required: bool = False,
        wait_s: float = 0.0,
        store: Literal["final", "all"] = "final",
        max_body: int = 1_000_000,
        on_expired_lease: ExpiredLeasePolicy | Literal["retry", "park"] = OnExpiredLease.RETRY,
        docs: str | None = None,
    ) -> None:
        if not callable(scope):
            raise ConfigurationError(
                "scope is a function of the ASGI scope that returns the user's id, or `authorization`, not "
                f"{type(scope).__name__}"
            )
        for words, name in ((methods, "methods"), (paths, "paths")):
            if isinstance(words, str):
                raise ConfigurationError(f"{name} is a list of texts, not one: write [{words!r}]")
        if store not in ("final", "all"):
            raise ConfigurationError(f"store is 'final' or 'all', not {store!r}")
        if docs is not None and not (docs.isascii() and docs.isprintable() and not set(docs) & set('<>" ')):
            raise ConfigurationError(f"docs is the address of a page, not {docs!r}")
        self.app: Final = app
        self.max_body: Final = whole(max_body, "max_body")
        self._wait_s = seconds(wait_s, "wait_s", zero=True)
        self._owner_of = scope
        self._methods = frozenset(method.upper() for method in methods)
        self._paths = None if paths is None else tuple(paths)
        self._required = required
        self._stores_all = store == "all"
        self._docs = docs
        self._flights: dict[str, _Flight] = {}
        made = checker_from_url(checker) if isinstance(checker, str) else checker
        self.transactions: Final = made if isinstance(made, TransactionHooks) else None
        self.checker: Final = made
        self.session_type: Final = None if self.transactions is None else _session_type()
        self._consumer = cast(
            "AsyncConsumer",
            default_registry.consumer(
                "http",
                checker=made,
                group=group,
                codec=AnswerCodec(),
                fingerprint=body_of,
                max_attempts=None,
                on_expired_lease=on_expired_lease,
                on_cancel="finish",
                registered=False,
            )(cast("Any", Handler(_not_called, self.session_type, batch=False, is_async=True))),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; a websocket and the lifespan pass through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        values = [value for name, value in scope["headers"] if name.lower() == HEADER]
        if not self._protects(scope) or not (values or self._required):
            await self._unprotected(scope, receive, send)
            return
        answer: Answer | None
        try:
            key = key_in(values)
        except BadKeyError as error:
            answer = self._problem(Problem.BAD_KEY, str(error))
        else:
            owner = self._owner_of(scope)
            if key is None:
                answer = self._problem(Problem.MISSING_KEY)
            elif not owner:
                answer = self._problem(Problem.NO_OWNER)
            else:
                answer = await self._protected(scope, receive, send, id_of_key(owner, key))
        if answer is not None:
            await _send_answer(send, answer.status, answer.headers, answer.body or b"")

    def _protects(self, scope: Scope) -> bool:
        if scope["method"] not in self._methods:
            return False
        return self._paths is None or any(fnmatchcase(scope["path"], path) for path in self._paths)

    def stores(self, status: int) -> bool:
        """Whether an answer of this status is stored, and what its request wrote committed."""
        return self._stores_all or is_final(status)

    async def _unprotected(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _Request(self, scope, receive, send, body=None)
        if self.transactions is None:
            token = _requests.set(request)
            try:
                await self.app(scope, receive, send)
            finally:
                _requests.reset(token)
            return
        try:
            await request.run()
            await request.end_own(commit=True)
        except _NotStoredError as error:
            await request.end_own(commit=False)
            if error.raised is not None:
                raise error.raised from None
        except StoreError:
            if request.has_begun:
                raise
            await request.drop()
            answer = self._problem(Problem.UNAVAILABLE, retry_after_s=_RETRY_AFTER_S)
            await _send_answer(send, answer.status, answer.headers, answer.body or b"")
            return
        finally:
            await request.end_own(commit=False)
        await request.finish()

    async def _protected(self, scope: Scope, receive: Receive, send: Send, key: str) -> Answer | None:
        """The answer to a request with a key; None: it has been sent, or nobody waits for it."""
        body = await self._body(scope, receive)
        if body is None or isinstance(body, Answer):
            return body
        content = fingerprint(scope["method"], scope["path"], scope.get("query_string", b""), body)
        message = Message(self._consumer.subject, content, id=key)
        request = _Request(self, scope, receive, send, body=body)
        result = await self._result_of_copy(key, content)
        if result is not None:
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
        if isinstance(result.error, _NotStoredError):
            if result.error.raised is not None:
                raise result.error.raised from None
            await request.finish()
            return None
        await request.drop()
        if request.has_begun and result.error is not None:
            raise result.error  # so that the server ends the answer as one that is not whole
        return self._answer_to(message, result)

    async def _result_of(self, message: Message, request: _Request, flight: _Flight) -> Result:
        """The result of a request that no other one of this process has the key of."""

        async def run(*given: Any) -> Answer:
            flight.changed.set()
            return await request.run(*given)

        waits = pauses(self._wait_s)
        while True:
            result = await self._consumer.process(message, call=run, session=self.session_type)
            pause_s = next(waits, None) if result.outcome is Outcome.IN_PROGRESS else None
            if pause_s is None:
                return result
            await asyncio.sleep(pause_s)

    async def _result_of_copy(self, key: str, content: bytes) -> Result | None:
        """The result of a request whose key another one of this process has; None: nobody has it any more.

        Copies wait for it in memory: a hundred would take a hundred connections otherwise, and in each other's way.
        """
        until = time.monotonic() + self._wait_s
        while (flight := self._flights.get(key)) is not None:
            await flight.changed.wait()
            if not flight.ended.is_set():
                if flight.content != content:
                    return Result(Outcome.REJECTED)
                with suppress(TimeoutError):
                    await asyncio.wait_for(flight.ended.wait(), max(until - time.monotonic(), 0))
                if not flight.ended.is_set():
                    return Result(Outcome.IN_PROGRESS)
            result = flight.result if flight.content == content else None
            if result is not None and (result.outcome is Outcome.PROCESSED or result.replayed):
                return Result(Outcome.DUPLICATE, value=result.value, replayed=True)
        return None

    def _answer_to(self, message: Message, result: Result) -> Answer:
        """The answer to a request that did not run, or whose end was not recorded."""
        match result.outcome:
            case Outcome.DUPLICATE if result.replayed and result.value.body is not None:
                stored: Answer = result.value
                return Answer(stored.status, stored.replayed(), stored.body)
            case Outcome.DUPLICATE:
                return self._problem(Problem.ANSWER_NOT_STORED)
            case Outcome.IN_PROGRESS:
                return self._problem(Problem.IN_PROGRESS, retry_after_s=_RETRY_AFTER_S)
            case Outcome.REJECTED:
                return self._problem(Problem.OTHER_REQUEST)
            case Outcome.DEAD:
                return self._problem(Problem.EFFECT_UNKNOWN, key=str(self._consumer.key_in(message)))
            case _:
                return self._problem(Problem.UNAVAILABLE, retry_after_s=_RETRY_AFTER_S)

    async def _body(self, scope: Scope, receive: Receive) -> bytes | Answer | None:
        """The whole body of a request; the answer to one that is too long; None: the client has gone."""
        told = [value for name, value in scope["headers"] if name.lower() == b"content-length"]
        size = int(told[0]) if told and told[0].isdigit() else 0
        parts: list[bytes] = []
        read, more = 0, True
        while more and size <= self.max_body:
            event = await receive()
            if event["type"] == "http.disconnect":
                return None
            parts.append(event.get("body", b""))
            read += len(parts[-1])
            size = max(size, read)
            more = event.get("more_body", False)
        if size > self.max_body:
            detail = f"A request with an Idempotency-Key may have {self.max_body} bytes."
            return self._problem(Problem.BODY_TOO_LONG, detail)
        return b"".join(parts)

    def _problem(
        self, problem: Problem, detail: str = "", *, retry_after_s: int | None = None, key: str | None = None
    ) -> Answer:
        return problem.answer(detail, docs=self._docs, retry_after_s=retry_after_s, key=key)


class _NotStoredError(Exception):
    """Ends the call of a request whose answer is not stored.

    Attributes:
        raised: what the application raised before its answer was whole; None: it answered.
    """

    def __init__(self, why: str, raised: BaseException | None = None) -> None:
        super().__init__(why)
        self.raised: Final = raised


class _Flight:
    """What the copies of a request wait for.

    Attributes:
        content: its fingerprint.
        result: what came of it; None: it was cancelled, or has not ended.
        changed: the application runs, or it has ended.
        ended: it has ended.
    """

    def __init__(self, content: bytes) -> None:
        self.content: Final = content
        self.result: Result | None = None
        self.changed: Final = asyncio.Event()
        self.ended: Final = asyncio.Event()


class _Request:
    """One request: gives it to the application, and sends on the answer, whose end waits for the store.

    Args:
        middleware: with the application and the options.
        scope: of the request.
        receive: the server's.
        send: the server's.
        body: of the request; None: the application reads it itself, and the request has no key.

    Attributes:
        has_begun: whether a part of the answer was sent.
        is_undone: an exception came out of the endpoint: what it wrote must not commit.
    """

    def __init__(
        self,
        middleware: IdempotencyKeyMiddleware,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        body: bytes | None,
    ) -> None:
        self.has_begun = False
        self.is_undone = False
        self._middleware = middleware
        self._scope = scope
        self._server_receive = receive
        self._server_send = send
        self._body = body
        self._session: Any = None
        self._own: Claim | None = None
        self._send_error: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    def _clear(self) -> None:
        """Expect the whole answer."""
        self.is_undone = False
        self._held: list[Event] = []
        self._status, self._headers = 0, kept(())
        self._parts: list[bytes] | None = []
        self._size = 0
        self._is_read = False
        self._whole: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sent = asyncio.Event()

    async def run(self, given: Any = None) -> Answer:
        """Run the application until its answer is whole, and return that to be stored.

        Raises:
            _NotStoredError: it is not to be stored, or the application raised.
        """
        await self.drop()  # an earlier run, whose transaction the database undid
        self._session = given
        self._clear()
        extensions = self._scope.get("extensions") or {}
        # What they send, such as the path of a file, cannot be stored.
        usable = {name: value for name, value in extensions.items() if not name.startswith("http.response.")}
        token = _requests.set(self)
        try:
            running = self._middleware.app({**self._scope, "extensions": usable}, self._receive, self._send)
            task = self._task = asyncio.ensure_future(_awaited(running))
        finally:
            _requests.reset(token)
        try:
            await asyncio.wait((task, self._whole), return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            task.cancel()
            raise
        if not self._whole.done():
            self._raise_end_of(task)
        if self.is_undone or not self._middleware.stores(self._status):
            raise _NotStoredError(f"the answer is {self._status}")
        return Answer(self._status, self._headers, None if self._parts is None else b"".join(self._parts))

    @staticmethod
    def _raise_end_of(task: asyncio.Task[None]) -> NoReturn:
        try:
            task.result()
        except DoomedTransactionError:
            raise
        except Exception as error:
            # Its cause shows whether the database undid the transaction; our own errors would mean more than that.
            cause = None if isinstance(error, IdempotentError) else error
            raise _NotStoredError(type(error).__name__, error) from cause
        raise _NotStoredError("no answer", RuntimeError("the application ended before its answer was whole"))

    async def _receive(self) -> Event:
        if self._body is not None and not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        if self._body is not None:
            await self._sent.wait()  # that the client hangs up must not end what it has begun
        return await self._server_receive()

    async def _send(self, event: Event) -> None:
        if event["type"] == "http.response.start":
            self._status, self._headers = event["status"], kept(event.get("headers", ()))
        elif event["type"] == "http.response.body":
            self._keep(event.get("body", b""))
        self._held.append(event)
        if event["type"] != "http.response.body":
            return
        if event.get("more_body", False):
            if self._session is None:  # else what it says may become untrue
                await self._flush()
        elif not self._whole.done():
            self._whole.set_result(None)
            await self._sent.wait()

    def _keep(self, part: bytes) -> None:
        if self._parts is None or self._body is None:
            return
        self._parts.append(bytes(part))
        self._size += len(part)
        if self._size > self._middleware.max_body:
            self._parts = None

    async def _flush(self) -> None:
        held, self._held = self._held, []
        for event in held:
            if self._send_error is None:
                self.has_begun = True
                try:
                    await self._server_send(event)
                except Exception as error:  # the client has gone, but not what it has begun
                    if self._body is None:
                        raise
                    self._send_error = error

    async def finish(self) -> None:
        """Send the rest of the answer, and let the application go on to its end, such as its background tasks."""
        await self._flush()
        self._sent.set()
        assert self._task is not None
        await self._task
        if self._send_error is not None and not isinstance(self._send_error, OSError):
            raise self._send_error

    def leave(self) -> None:
        """Let the application go on to its end, for nobody."""
        if self._task is not None and not self._task.done():
            self._send_error = OSError("the request was cancelled")
            self._sent.set()
            _left.add(self._task)
            self._task.add_done_callback(_left.discard)

    async def drop(self) -> None:
        """End the application, whose request has not taken effect."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._task

    async def session(self) -> Any:
        """The session of its transaction. Raises what `asgi.session` raises."""
        checker, hooks = self._middleware.checker, self._middleware.transactions
        if hooks is None:
            raise ConfigurationError(
                f"session() needs a checker with transactions, and {type(checker).__name__} has none; use a "
                "TransactionalSqlChecker with an AsyncEngine"
            )
        if self._session is None:
            self._own = await checker.awaiting.call(hooks.claim_nothing)
            self._session = await checker.awaiting.call(
                hooks.handler_argument, self._own, self._middleware.session_type
            )
        return self._session

    async def end_own(self, *, commit: bool) -> None:
        """End the transaction of a request without a key, if it has one. Raises what a COMMIT raises."""
        own = self._own
        if own is None:
            return
        checker = self._middleware.checker
        if commit:
            await checker.awaiting.call(checker.protocol.complete, own)
            self._own = None
        else:
            self._own = None
            await checker.awaiting.call(checker.protocol.abandon, own)


async def _awaited(running: Awaitable[None]) -> None:
    await running


async def _send_answer(send: Send, status: int, headers: Any, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _session_type() -> type:
    from sqlalchemy.ext.asyncio import AsyncSession

    return AsyncSession


async def _not_called(_: Message, *__: Any) -> None:
    raise AssertionError("each call brings its own function")
