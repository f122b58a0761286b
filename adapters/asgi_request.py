"""Request: gives one request to an ASGI application, and holds the end of its answer until the store has it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from idempotent.adapters.idempotency_key import Answer, NotStoredError, Rules, kept
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.side_calls import ended
from idempotent.checkers.transactions import TransactionHooks
from idempotent.claims import Claim
from idempotent.errors import ConfigurationError, DoomedTransactionError, IdempotentError
from idempotent.keys import Key

Scope: TypeAlias = MutableMapping[str, Any]
Event: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

requests: ContextVar[Request | None] = ContextVar("idempotent_asgi_request", default=None)
# Applications that work on after their client and their server have gone: the loop alone would not keep them.
_left: Final[set[asyncio.Task[None]]] = set()


@dataclass(frozen=True, slots=True)
class Settings:
    """What a middleware tells its requests.

    Args:
        app: the application.
        checker: the checker.
        transactions: the same, if it is transactional.
        session_type: what an endpoint may write with; None: the checker is not transactional.
        rules: which answers are stored.
    """

    app: App
    checker: AbstractIdempotentChecker
    transactions: TransactionHooks | None
    session_type: type | None
    rules: Rules


class Request:
    """One request: gives it to the application, and sends on the answer, whose end waits for the store.

    Args:
        settings: of the middleware.
        scope: of the request.
        receive: the server's.
        send: the server's.
        body: of the request; None: the application reads it itself, and the request has no key.
        key: the request's, as it is stored; None: it has none.

    Attributes:
        checker: has its key.
        session_type: what its endpoint may write with.
        has_begun: whether a part of the answer was sent.
        is_undone: an exception came out of the endpoint: what it wrote must not commit.
    """

    def __init__(
        self,
        settings: Settings,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        body: bytes | None,
        key: Key | None = None,
    ) -> None:
        self.key: Final = key
        self.checker: Final = settings.checker
        self.session_type: Final = settings.session_type
        self.has_begun = False
        self.is_undone = False
        self._settings = settings
        self._scope = scope
        self._server_receive = receive
        self._server_send = send
        self._body = body
        self._session: Any = None
        self._own: asyncio.Future[Claim] | None = None
        self._has_ended = False
        self._send_error: Exception | None = None
        self._run = _Run()

    async def run(self, given: Any = None) -> Answer:
        """Run the application until its answer is whole, and return that to be stored.

        Raises:
            NotStoredError: it is not to be stored, or the application raised.
        """
        await self.drop()  # an earlier run, whose transaction the database undid
        self._session = given
        self.is_undone = False
        run = self._run = _Run()
        extensions = self._scope.get("extensions") or {}
        # What they send, such as the path of a file, cannot be stored.
        usable = {name: value for name, value in extensions.items() if not name.startswith("http.response.")}
        token = requests.set(self)
        try:
            run.start(self._settings.app({**self._scope, "extensions": usable}, self._receive, self._send))
        finally:
            requests.reset(token)
        await run.until_whole()
        retry_after = any(name == b"retry-after" for name, _ in run.headers)
        if self.is_undone or not self._settings.rules.stores(run.status, retry_after=retry_after):
            raise NotStoredError(f"the answer is {run.status}")
        return Answer(run.status, run.headers, None if run.parts is None else b"".join(run.parts))

    async def _receive(self) -> Event:
        run = self._run
        if self._body is not None and not run.is_read:
            run.is_read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        if self._body is not None:
            await run.sent.wait()  # that the client hangs up must not end what it has begun
        return await self._server_receive()

    async def _send(self, event: Event) -> None:
        run = self._run
        if event["type"] == "http.response.start":
            run.status, run.headers = event["status"], kept(event.get("headers", ()))
        elif event["type"] == "http.response.body" and self._body is not None:
            run.keep(event.get("body", b""), self._settings.rules.max_body)
        run.held.append(event)
        if event["type"] != "http.response.body":
            return
        if event.get("more_body", False):
            if self._session is None:  # else what it says may become untrue
                await self._flush()
        elif not run.whole.done():
            run.whole.set_result(True)
            await run.sent.wait()

    async def _flush(self) -> None:
        held, self._run.held = self._run.held, []
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
        self._run.sent.set()
        assert self._run.task is not None
        await self._run.task
        if self._send_error is not None and not isinstance(self._send_error, OSError):
            raise self._send_error

    def leave(self) -> None:
        """Let the application go on to its end, although no client waits for its answer."""
        task = self._run.task
        if task is not None and not task.done():
            self._send_error = OSError("the request was cancelled")
            self._run.sent.set()
            _left.add(task)
            task.add_done_callback(_left.discard)

    async def drop(self) -> None:
        """End the application, whose request has not taken effect."""
        task = self._run.task
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task

    async def session(self) -> Any:
        """The session of its transaction. Raises what `asgi.session` raises."""
        checker, hooks = self._settings.checker, self._settings.transactions
        if hooks is None:
            raise ConfigurationError(
                f"session() needs a checker with transactions, and {type(checker).__name__} has none; use a "
                "TransactionalSqlChecker with an AsyncEngine"
            )
        if self._session is None:
            own = await asyncio.shield(self._opening(hooks))
            self._session = await checker.awaiting.begin(
                hooks.handler_argument, own, self._settings.session_type
            )
        return self._session

    def _opening(self, hooks: TransactionHooks) -> asyncio.Future[Claim]:
        """Its own transaction, one for all its parts. It opens to its end, also for a part that is cancelled."""
        if self._has_ended:
            raise ConfigurationError(
                "the request has no key, and its transaction has ended with its answer: what runs after that, such as "
                "a background task, needs a session of its own"
            )
        if self._own is None:
            self._own = asyncio.ensure_future(self._settings.checker.awaiting.call(hooks.claim_nothing))
            self._own.add_done_callback(self._forget_unopened)
        return self._own

    def _forget_unopened(self, own: asyncio.Future[Claim]) -> None:
        if own.cancelled() or own.exception() is not None:  # each part that waited for it was told
            self._own = None

    async def end_own(self, *, commit: bool) -> None:
        """End the transaction of a request without a key, if it has one. Raises what a COMMIT raises."""
        self._has_ended = True
        own = self._own
        if own is None:
            return
        if not commit:
            self._own = None
        await ended(self._end(own, commit=commit))
        self._own = None

    async def _end(self, own: asyncio.Future[Claim], *, commit: bool) -> None:
        await asyncio.wait([own])
        if not own.cancelled() and own.exception() is None:
            awaiting, protocol = self._settings.checker.awaiting, self._settings.checker.protocol
            await awaiting.call(protocol.complete if commit else protocol.abandon, own.result())


class _Run:
    """One run of the application for a request, and what it has answered so far.

    Attributes:
        task: runs it; None: it has not begun.
        is_read: it has the body of the request.
        status: of its answer; 0: it has none yet.
        headers: those of the answer that are stored.
        parts: of the body that is stored; None: it is too long.
        held: what is not sent on yet.
        whole: whether the answer is whole, or the application has ended without it.
        sent: the application may go on after its answer.
    """

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.is_read = False
        self.status, self.headers = 0, kept(())
        self.parts: list[bytes] | None = []
        self._size = 0
        self.held: list[Event] = []
        self.whole: Final[asyncio.Future[bool]] = asyncio.get_running_loop().create_future()
        self.sent: Final = asyncio.Event()

    def start(self, running: Awaitable[None]) -> None:
        """Begin."""
        self.task = asyncio.ensure_future(_awaited(running))
        self.task.add_done_callback(self._end)

    def _end(self, _: object) -> None:
        if not self.whole.done():
            self.whole.set_result(False)

    async def until_whole(self) -> None:
        """Wait for the whole answer. A cancellation ends the application.

        Raises:
            DoomedTransactionError: the database has undone its transaction.
            NotStoredError: it raised, or ended before its answer was whole.
        """
        assert self.task is not None
        try:
            if await self.whole:
                return
        except BaseException:
            self.task.cancel()
            raise
        try:
            self.task.result()
        except DoomedTransactionError:
            raise
        except Exception as error:
            # Its cause shows whether the database undid the transaction; our own errors would mean more than that.
            cause = None if isinstance(error, IdempotentError) else error
            raise NotStoredError(type(error).__name__, error) from cause
        raise NotStoredError("no answer", RuntimeError("the application ended before its answer was whole"))

    def keep(self, part: bytes, most: int) -> None:
        """Store a part of the body, unless that gets longer than `most`."""
        if self.parts is None:
            return
        self.parts.append(bytes(part))
        self._size += len(part)
        if self._size > most:
            self.parts = None


async def _awaited(running: Awaitable[None]) -> None:
    await running
