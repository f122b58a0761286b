"""IdempotencyKeyMiddleware for Django: requests with an `Idempotency-Key` take effect once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any, Final, cast
from weakref import WeakSet

from django.conf import settings
from django.db import connections, transaction
from django.http import HttpResponse, RawPostDataException
from django.utils.module_loading import import_string

from idempotent.adapters.django.checker import OTHER_WRITER, DjangoChecker
from idempotent.adapters.idempotency_key import (
    Answer,
    NotStoredError,
    Rules,
    fingerprint,
    kept,
    plain_consumer,
)
from idempotent.checkers import checker_from_url
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.errors import ConfigurationError, DoomedTransactionError, TransactionEscapedError
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result
from idempotent.policy import OnExpiredLease

SETTING: Final = "IDEMPOTENCY"
_HEADER: Final = "HTTP_IDEMPOTENCY_KEY"
_FIRST_ERROR: Final = 400


def authorization(request: Any) -> str:
    """For `scope`: a key belongs to who sends this `Authorization`. It is hashed, and empty without one.

    Not for tokens that are renewed between a request and its repetition: the repetition would belong to another user,
    and run.
    """
    return str(request.META.get("HTTP_AUTHORIZATION", ""))


class IdempotencyKeyMiddleware:
    """Runs a request once for each `Idempotency-Key` of a user, and repeats its answer for its copies.

    For MIDDLEWARE, behind that which knows the user. With a `DjangoChecker` the view runs in an `atomic()` with the key
    and the answer. `IDEMPOTENCY` in the settings is a dict of its options. Functions and objects may be given by the
    path of their import:

    - `checker`: an instance, or a URL; default: `DjangoChecker()`.
    - `scope`, required: who a key belongs to: called with the request, returns the user's id; or `authorization`.
    - `group`, required: part of the key, such as the service.
    - `on_expired_lease`: what to do if the process died in a request, with a checker that has leases: see `@consumer`.
    - `methods`, `paths` and others: see `Options` in `idempotent.adapters.idempotency_key`.

    Args:
        get_response: what Django calls it with.

    Raises:
        ConfigurationError: invalid options.
    """

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        options: dict[str, Any] = dict(getattr(settings, SETTING, {}))
        checker = _imported(options.pop("checker", None))
        scope, group = _imported(options.pop("scope", None)), options.pop("group", None)
        if not callable(scope) or not group:
            raise ConfigurationError(
                f"{SETTING} needs 'group', and 'scope': a function of the request that returns the user's id, or "
                "'idempotent.adapters.django.authorization'"
            )
        expired = options.pop("on_expired_lease", OnExpiredLease.RETRY)
        try:
            self._rules = Rules(**options)
        except TypeError as error:
            raise ConfigurationError(f"{SETTING} in the settings: {error}") from error
        self._checker: AbstractIdempotentChecker = (
            checker_from_url(checker) if isinstance(checker, str) else checker or DjangoChecker()
        )
        database = self._checker.using if isinstance(self._checker, DjangoChecker) else None
        if database is not None and not connections[database].settings_dict["AUTOCOMMIT"]:
            raise ConfigurationError(
                f"DATABASES[{database!r}] has AUTOCOMMIT=False, with which Django does not commit what a request "
                "writes; remove it"
            )
        self._get_response = get_response
        self._raised: WeakSet[Any] = WeakSet()
        self._owner_of: Callable[[Any], str] = scope
        self._consumer = plain_consumer(self._checker, group, expired)

    def __call__(self, request: Any) -> Any:
        """Answer a request."""
        rules = self._rules
        values = [request.META[_HEADER].encode("latin-1", "replace")] if _HEADER in request.META else []
        if not rules.protects(request.method, request.path) or not (values or rules.required):
            return self._get_response(request)
        key = rules.key(values, lambda: self._owner_of(request))
        if isinstance(key, Answer):
            return _response(key)
        told = request.META.get("CONTENT_LENGTH") or "0"
        if (told.isdigit() and int(told) > rules.max_body) or len(_body_of(request)) > rules.max_body:
            return _response(rules.too_long())
        return self._protected(request, key)

    def process_exception(self, request: Any, exception: Exception) -> None:
        """Note that the view raised: Django makes an answer of it, which is not stored."""
        del exception
        self._raised.add(request)

    def _protected(self, request: Any, key: str) -> Any:
        query = request.META.get("QUERY_STRING", "").encode("latin-1", "replace")
        content = fingerprint(request.method, request.path, query, request.body)
        message = Message(self._consumer.subject, content, id=key)
        answered: list[Any] = []

        def run() -> Answer:
            if answered:  # its transaction was undone at the end: the client sends the request again
                raise DoomedTransactionError("a view runs once for a request")
            with self._atomic():
                answered.append(self._get_response(request))
                return self._stored(request, answered[0])

        def process() -> Result[Any]:
            result = self._consumer.process(message, call=run)
            # SQLite has waited for its other writer already, for the connection's `timeout`.
            return Result(Outcome.UNAVAILABLE) if result.reason == OTHER_WRITER else result

        result: Result[Any] = self._rules.waited(process)
        if answered and (result.outcome is Outcome.PROCESSED or isinstance(result.error, NotStoredError)):
            return answered[0]
        if result.is_handler_error and result.error is not None:
            raise result.error  # of a stream, while it was read
        return _response(self._rules.answer_to(result, lambda: self._consumer.key_in(message)))

    def _atomic(self) -> AbstractContextManager[Any]:
        """Lets a view take back what it wrote, by `set_rollback()`, and keep its answer."""
        if isinstance(self._checker, DjangoChecker):
            return cast("AbstractContextManager[Any]", transaction.atomic(self._checker.using))
        return nullcontext()

    def _stored(self, request: Any, response: Any) -> Answer:
        """What is stored of an answer.

        Raises:
            NotStoredError: nothing, and what its request wrote is taken back.
        """
        status = response.status_code
        # `exception`: Django REST framework made the answer of what the view raised.
        if request in self._raised or getattr(response, "exception", False):
            raise NotStoredError(f"the view raised: {status}")
        if not self._rules.stores(status, retry_after=response.has_header("Retry-After")):
            raise NotStoredError(f"the answer is {status}")
        if status < _FIRST_ERROR and self._is_to_roll_back():
            raise TransactionEscapedError(
                f"a view answered {status}, and its transaction can only be rolled back: it closed the connection, "
                "called set_rollback(True), or went on after an error of the database"
            )
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.items()]
        return Answer(status, kept(headers), self._body_of(response))

    def _is_to_roll_back(self) -> bool:
        """Whether the `atomic()` can only be rolled back: an answer that says otherwise is no answer to repeat."""
        return isinstance(self._checker, DjangoChecker) and connections[self._checker.using].needs_rollback

    def _body_of(self, response: Any) -> bytes | None:
        """The body of an answer, up to `max_body`; a stream is read, and can still be sent."""
        most = self._rules.max_body
        if not response.streaming:
            return response.content if len(response.content) <= most else None
        if response.is_async:
            return None
        stream, parts, size = iter(response.streaming_content), [], 0
        for part in stream:
            parts.append(part)
            size += len(part)
            if size > most:
                response.streaming_content = chain(parts, stream)
                return None
        response.streaming_content = parts
        return b"".join(parts)


def _body_of(request: Any) -> bytes:
    """The whole body of a request, which the view can still read.

    Raises:
        ConfigurationError: it is gone.
    """
    try:
        return cast("bytes", request.body)
    except RawPostDataException as error:
        raise ConfigurationError(
            "a middleware above IdempotencyKeyMiddleware has read the form of this request, request.POST, and with it "
            "the body, which copies are compared by: let it read request.body first, or put it below"
        ) from error


def _imported(given: Any) -> Any:
    """What a path of an import names; anything else as it is, such as a URL."""
    return import_string(given) if isinstance(given, str) and "://" not in given else given


def _response(answer: Answer) -> HttpResponse:
    headers: Mapping[str, str] = {
        name.decode("latin-1"): value.decode("latin-1") for name, value in answer.headers
    }
    response = HttpResponse(answer.body or b"", status=answer.status, headers=headers)
    if "content-type" not in headers:
        del response["Content-Type"]
    return response
