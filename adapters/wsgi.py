"""IdempotencyKeyMiddleware: requests with an `Idempotency-Key` take effect once, in any WSGI application."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from contextlib import closing, nullcontext
from http.client import responses
from typing import Any, Final, Literal, TypeAlias, Unpack

from idempotent.adapters.idempotency_key import (
    Answer,
    NotStoredError,
    Options,
    Problem,
    Rules,
    fingerprint,
    kept,
    plain_consumer,
)
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.transactions import TransactionHooks
from idempotent.errors import ConfigurationError, DoomedTransactionError, IdempotentError
from idempotent.message import Message
from idempotent.outcomes import Outcome
from idempotent.policy import OnExpiredLease
from idempotent.processing.options import ExpiredLeasePolicy
from idempotent.registry import default_registry

Environ: TypeAlias = dict[str, Any]
App: TypeAlias = Callable[[Any, Any], Iterable[bytes]]
SESSION: Final = "idempotent.session"
"""In the environ of a request with a key: the Session that commits with it, if the checker is transactional."""
_HEADER: Final = "HTTP_IDEMPOTENCY_KEY"


def authorization(environ: Environ) -> str:
    """For `scope=`: as `asgi.authorization`."""
    return str(environ.get("HTTP_AUTHORIZATION", ""))


class IdempotencyKeyMiddleware:
    """As `asgi.IdempotencyKeyMiddleware`. A whole answer waits in memory for the store.

    Args:
        app: the application.
        checker: an instance, a URL, or the name of one that is registered. A transactional one has a plain Engine.
        scope: who a key belongs to: called with the environ, returns the user's id; or `authorization`.
        group: part of the key, such as the service.
        on_expired_lease: what to do if the process died in a request: see `@consumer`.
        options: see `Options`.

    Raises:
        ConfigurationError: invalid options; a checker with an AsyncEngine.
    """

    def __init__(
        self,
        app: App,
        *,
        checker: AbstractIdempotentChecker | str,
        scope: Callable[[Environ], str],
        group: str,
        on_expired_lease: ExpiredLeasePolicy | Literal["retry", "park"] = OnExpiredLease.RETRY,
        **options: Unpack[Options],
    ) -> None:
        if not callable(scope):
            raise ConfigurationError(f"scope is a function of the environ, not {type(scope).__name__}")
        self._app, self._owner_of, self._rules = app, scope, Rules(**options)
        self._session = _session_type(default_registry.resolve(checker))
        self._consumer = plain_consumer(checker, group, on_expired_lease, self._session)

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        """Answer a request."""
        values = [environ[_HEADER].encode("latin-1", "replace")] if _HEADER in environ else []
        name = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        path = name.encode("latin-1", "replace").decode(errors="surrogateescape")
        method, rules = environ["REQUEST_METHOD"], self._rules
        if not rules.protects(method, path) or not (values or rules.required):
            return self._app(environ, start_response)
        key = rules.key(values, lambda: self._owner_of(environ))
        body = b"" if isinstance(key, Answer) else _body(environ, rules.max_body)
        if isinstance(key, Answer) or len(body) > rules.max_body:
            return _sent(key if isinstance(key, Answer) else rules.too_long(), start_response)
        told = environ.get("CONTENT_LENGTH") or ""
        if told.isdigit() and len(body) < int(told):  # its client has gone: nobody reads the answer
            return _sent(rules.problem(Problem.BODY_INCOMPLETE), start_response)
        content = fingerprint(
            method, path, environ.get("QUERY_STRING", "").encode("latin-1", "replace"), body
        )
        message = Message(self._consumer.subject, content, id=key)
        answered: list[Any] = []

        def run(*session: Any) -> Answer:
            answered[:] = self._run({**environ, "CONTENT_LENGTH": str(len(body))}, io.BytesIO(body), *session)
            return self._stored(*answered)

        result = rules.waited(lambda: self._consumer.process(message, call=run, session=self._session))
        is_not_stored = isinstance(result.error, NotStoredError)
        raised = result.error.raised if isinstance(result.error, NotStoredError) else result.error
        if raised is not None and (is_not_stored or result.is_handler_error):
            raise raised from None
        if result.outcome is not Outcome.PROCESSED and not is_not_stored:
            return _sent(rules.answer_to(result, lambda: self._consumer.key_in(message)), start_response)
        start_response(*answered[:2])
        return [answered[2]]

    def _run(self, environ: Environ, body: io.BytesIO, session: Any = None) -> tuple[Any, Any, bytes]:
        """The status, the headers and the body of the application's answer."""
        begun: list[Any] = []
        parts: list[bytes] = []

        def start(
            status: str, headers: list[tuple[str, str]], failed: Any = None
        ) -> Callable[[bytes], object]:
            # As a server does (PEP 3333), for which an answer has begun with the first bytes of its body.
            if failed and any(parts):
                raise failed[1].with_traceback(failed[2])
            if begun and not failed:
                raise RuntimeError("start_response was called before, and without exc_info")
            begun[:] = status, headers
            return parts.append

        try:
            answer: Any = self._app({**environ, "wsgi.input": body, SESSION: session}, start)
            with closing(answer) if hasattr(answer, "close") else nullcontext():
                for part in answer:  # seen by `start`, which may be called in between
                    parts.append(part)  # noqa: PERF402
            status, headers = begun
        except DoomedTransactionError:
            raise
        except Exception as error:
            # Its cause shows whether the database undid the transaction; our own errors would mean more than that.
            cause = None if isinstance(error, IdempotentError) else error
            raise NotStoredError(type(error).__name__, error) from cause
        return status, headers, b"".join(parts)

    def _stored(self, status: str, pairs: list[tuple[str, str]], body: bytes) -> Answer:
        headers = kept((name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs)
        code, retry_after = int(status[:3]), any(name == b"retry-after" for name, _ in headers)
        if not self._rules.stores(code, retry_after=retry_after):
            raise NotStoredError(f"the answer is {code}")
        return Answer(code, headers, body if len(body) <= self._rules.max_body else None)


def _body(environ: Environ, most: int) -> bytes:
    """The body of a request; of one that is longer than `most`, a part that is longer."""
    told, stream = environ.get("CONTENT_LENGTH") or "", environ["wsgi.input"]
    # One that is sent in chunks has no length, and only some servers let it be read to its end.
    has_end = environ.get("wsgi.input_terminated") or isinstance(stream, io.BytesIO)
    size = most + 1 if has_end else int(told) if told.isdigit() else 0
    body: bytes = stream.read(min(size, most + 1))
    return body


def _sent(answer: Answer, start_response: Any) -> Iterable[bytes]:
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers]
    start_response(f"{answer.status} {responses.get(answer.status, 'Unknown')}", headers)
    return [answer.body or b""]


def _session_type(checker: AbstractIdempotentChecker) -> type | None:
    if not isinstance(checker, TransactionHooks) or not checker.lends:
        return None
    from sqlalchemy.orm import Session

    return Session
