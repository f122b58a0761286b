"""Once: the block of a `with`, or of an `async with`, that runs once for its key."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import Token
from types import TracebackType
from typing import Any, Self

from idempotent.claims import Claim
from idempotent.consumer import AnyConsumer
from idempotent.errors import DuplicateError
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result
from idempotent.processing.binding import Binding
from idempotent.processing.calling import enter_claim, leave_claim
from idempotent.processing.holding import pauses
from idempotent.processing.single import process_one
from idempotent.processing.steps import (
    SLEEP,
    Closed,
    Life,
    Step,
    close,
    drive,
    drive_async,
    frame_of,
    part_of,
)


class Once:
    """A block that runs once for each key; see `once`.

    Attributes:
        claim: the claim of the key, in the block: its fence and its key's token, to send downstream.
        session: the session of the transaction that holds the key, if `once` was given a type of one.
        value: what to store for later blocks with this key, as JSON; set it in the block.
    """

    def __init__(self, consumer_of: Callable[..., AnyConsumer], message: Message, wait_s: float) -> None:
        """Claim nothing yet."""
        self.claim: Claim
        self.session: Any = None
        self.value: Any = None
        self._consumer_of = consumer_of
        self._message = message
        self._wait_s = wait_s
        self._began = 0.0
        self._token: Token[Any] | None = None
        self._around: AbstractContextManager[object] | None = None

    def _begin(self, *, is_async: bool) -> Life[Step | Result]:
        """The life of the block's message, up to the block; it waits while another block has the key.

        It returns the step that is the block, or the result of a message whose block does not begin.
        """
        if self._token is not None:
            raise RuntimeError("this block is entered already: call once() for each block")
        self._consumer = self._consumer_of(is_async=is_async)
        self._binding = self._consumer.binding
        return self._claiming(self._binding)

    def _claiming(self, binding: Binding) -> Life[Step | Result]:
        waits = pauses(self._wait_s)
        while True:
            self._life = process_one(binding, self._message)
            got = yield from part_of(self._life, before=binding.calls.one)
            if not isinstance(got, Result):
                return got
            pause_s = next(waits, None) if got.outcome is Outcome.IN_PROGRESS else None
            if pause_s is None:
                self._report(got)
                return got
            yield SLEEP, time.sleep, (pause_s,)

    def _enter(self, got: Step | Result) -> Callable[[], Any] | None:
        """Begin the block, or raise why it does not begin. Returns what gives its session, if it has one."""
        if isinstance(got, Result):
            if got.outcome is Outcome.DUPLICATE:
                key = self._binding.key_of(self._message)
                raise DuplicateError(f"{key} is done: its block ran before", value=got.value)
            raise self._consumer.error_of(self._message, got)
        self.claim = got[2][0]
        self._token = enter_claim(self.claim)
        observers = self._binding.observers
        if observers.watch_runs:
            self._around = observers.around(self._binding.name, (self._message,), self.claim)
            self._around.__enter__()
        self._began = time.perf_counter()
        kind, hook = self._binding.handler.session_type, self._binding.transactions.handler_argument
        return None if kind is None else functools.partial(hook, self.claim, kind)

    def _leave(self, error: BaseException | None) -> None:
        token, self._token = self._token, None
        assert token is not None
        leave_claim(token)
        if self._around is not None:
            self._around.__exit__(None if error is None else type(error), error, None)
            self._around = None
        observers = self._binding.observers
        if observers.watch_runs:
            observers.ran(self._binding.name, (self._message,), time.perf_counter() - self._began, error)

    def _rest(self, error: BaseException | None) -> Life[Any]:
        """What is left of the block's life after it has ended."""
        if error is None:
            return part_of(self._life, answer=(self._life.send, self.value))
        raised = Closed() if isinstance(error, GeneratorExit) else error
        return part_of(self._life, answer=(self._life.throw, raised))

    def _report(self, result: Result) -> None:
        self._consumer.report(self._message, result)

    def _end(self, result: Result, error: BaseException | None) -> None:
        """Raise what went wrong after a block without an exception."""
        if error is None and result.outcome is not Outcome.PROCESSED:
            raise self._consumer.error_of(self._message, result)

    def __enter__(self) -> Self:
        hook = self._enter(drive(self._begin(is_async=False)))
        if hook is not None:
            try:
                self.session = hook()
            except BaseException as error:
                self.__exit__(type(error), error, error.__traceback__)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error)
        result = drive(self._rest(error))
        self._report(result)
        self._end(result, error)

    async def __aenter__(self) -> Self:
        claiming = self._begin(is_async=True)
        awaiting = self._binding.checker.awaiting
        try:
            got = await drive_async(claiming, awaiting)
        except asyncio.CancelledError as error:
            if frame_of(self._life) is not None:  # it came when the key was claimed
                await drive_async(self._rest(error), awaiting)
            raise
        hook = self._enter(got)
        if hook is not None:
            try:
                self.session = await awaiting.begin(hook)
            except BaseException as error:
                await self.__aexit__(type(error), error, error.__traceback__)
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error)
        awaiting = self._binding.checker.awaiting
        if isinstance(error, GeneratorExit):  # the task is closed, and may await nothing
            awaiting.later(close, self._life)
        else:
            self._end(await drive_async(self._rest(error), awaiting, self._report), error)
