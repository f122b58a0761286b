"""Plug-ins: what those of frameworks share, which find out for themselves what to do with a message."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.transactions import TransactionHooks
from idempotent.errors import ConfigurationError, DeadKeyError, MissingKeyError, ResultNotStoredError
from idempotent.function import Id, key_of
from idempotent.message import Message
from idempotent.outcomes import Result
from idempotent.processing.handler import Handler, function_of
from idempotent.registry import default_registry

FINAL: Final = (DeadKeyError, MissingKeyError, ResultNotStoredError)
"""Errors after which a repetition comes to the same."""


class Answered(BaseException):
    """What runs has answered its framework in another way than by its work: it has not failed, and its key is free.

    Attributes:
        answer: what the framework is to get.
    """

    def __init__(self, answer: Any) -> None:
        super().__init__(answer)
        self.answer: Final = answer


class Task:
    """A function that a framework runs for its messages, and that takes effect once for each key.

    Args:
        function: takes what the messages carry, and perhaps a session.
        key: the name of an argument, or a function of them; None: the id of the message.
        answers: exceptions by which the function answers its framework.

    Attributes:
        handler: the function, as its signature shows it. A plug-in may replace it before `declare`.
        session: its parameter for the session of the transaction that holds the key; None: it has none.
        signature: what the framework and who sends a message see: without that parameter.
        consumer: processes the messages; made by `declare`.

    Raises:
        ConfigurationError: the function cannot be protected, or has no such argument.
    """

    consumer: Any

    def __init__(
        self,
        function: Callable[..., Any],
        key: str | Callable[..., Id | None] | None,
        answers: tuple[type[BaseException], ...],
    ) -> None:
        self.handler, self.session = function_of(function)
        whole = inspect.signature(function)
        parameters = [each for each in whole.parameters.values() if each.name != self.session]
        self.signature: Final = whole.replace(parameters=parameters)
        self._key = None if key is None else key_of(key, whole, self.session)
        self._answers = answers

    def declare(self, name: str, **options: Any) -> None:
        """Make the consumer; raises a ConfigurationError for invalid options of `@consumer`."""
        self.consumer = consumer_of(name, self.handler, **options)

    def message(self, identity: Id | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Message:
        """The message of the key of what was sent: its id, and the arguments in it."""
        key = identity if self._key is None else self._key(*args, **kwargs)
        return Message(self.consumer.subject, id=key)

    def process(self, message: Message, call: Callable[..., Any]) -> Result:
        """What came of a message; raises what the function answers. `call` runs it, and takes its session by name."""

        def run(*session: Any) -> Any:
            try:
                return call(**self._given(session))
            except self._answers as answer:
                raise Answered(answer) from None

        try:
            result: Result = self.consumer.process(message, call=run, session=self.handler.session_type)
        except Answered as answered:
            raise answered.answer from None
        return result

    async def process_async(self, message: Message, call: Callable[..., Awaitable[Any]]) -> Result:
        """The same of an `async def`."""

        async def run(*session: Any) -> Any:
            try:
                return await call(**self._given(session))
            except self._answers as answer:
                raise Answered(answer) from None

        try:
            result: Result = await self.consumer.process(message, call=run, session=self.handler.session_type)
        except Answered as answered:
            raise answered.answer from None
        return result

    def _given(self, session: tuple[Any, ...]) -> dict[str, Any]:
        return {} if self.session is None else {self.session: session[0]}


def consumer_of(subject: str, handler: Handler, **options: Any) -> Any:
    """The Consumer or AsyncConsumer of a plug-in: no worker consumes for it, and the framework decides on repetition.

    Args:
        subject: what its keys are of.
        handler: what it runs; `caller` if each call brings that.
        options: others of `@consumer`.

    Raises:
        ConfigurationError: invalid options.
    """
    declared: Any = default_registry.consumer(subject, max_attempts=None, registered=False, **options)
    return declared(handler)


def caller(session_type: type | None, *, is_async: bool) -> Handler:
    """The handler of a consumer whose calls each bring what runs; `session_type`: of the session that they take."""
    return Handler(_not_called, session_type, batch=False, is_async=is_async)


def async_session(checker: AbstractIdempotentChecker, who: str) -> type | None:
    """AsyncSession, if the checker has a transaction to share with an asynchronous framework.

    Raises:
        ConfigurationError: it has a plain engine; the text begins with `who`.
    """
    if not isinstance(checker, TransactionHooks):
        return None
    if not checker.is_async:
        raise ConfigurationError(
            f"{who} is asynchronous: give the {type(checker).__name__} an AsyncEngine, "
            "create_async_engine('postgresql+psycopg://...') or 'mysql+asyncmy://...'. For SQLite, which has none "
            "here, use SqlChecker: the effect then commits apart from the key"
        )
    from sqlalchemy.ext.asyncio import AsyncSession

    return AsyncSession


def _not_called(_: Message, *__: Any) -> None:
    raise AssertionError("each call brings its own function")
