"""The rules of the HTTP header `Idempotency-Key`, for every web framework: keys, fingerprints, answers, problems."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeAlias, TypedDict, Unpack
from uuid import UUID

from idempotent.adapters.plug_in import caller, consumer_of
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.consumer import Consumer
from idempotent.errors import ConfigurationError
from idempotent.function import body_of
from idempotent.keys import id_of
from idempotent.outcomes import Outcome, Result
from idempotent.policy import OnExpiredLease
from idempotent.processing.holding import repeat_while_held
from idempotent.validation import seconds, whole

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Names in lower case, and values."""

HEADER: Final = b"idempotency-key"
METHODS: Final = ("POST", "PATCH")
MAX_BODY: Final = 1_000_000
_RETRY_AFTER_S: Final = 1
REPLAYED: Final = b"Idempotent-Replayed"
_EXPOSE: Final = b"access-control-expose-headers"
_VISIBLE: Final = re.compile(r"[!-~]{1,255}")
# A string of RFC 8941, of visible characters; and what Stripe's clients send. A comma joins two headers.
_QUOTED: Final = re.compile(r'"((?:[!#-\[\]-~]|\\["\\])+)"')
_BARE: Final = re.compile(r"[!#-+\--~]+")
# About one connection, or one moment, or one browser: a later answer must not have them.
_NOT_STORED: Final = frozenset(
    {
        b"connection",
        b"date",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"set-cookie",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# The caller is to send the request again, perhaps with other credentials.
_FREE: Final = frozenset({401, 403, 408, 425, 429})
_FIRST_ERROR: Final = 400
_FIRST_SERVER_ERROR: Final = 500


class BadKeyError(ValueError):
    """The header is no key."""


def key_in(values: Sequence[bytes]) -> str | None:
    """The key that a request has; None: no header. `"abc"` and `abc` are the same key.

    Args:
        values: of all its headers of this name.

    Raises:
        BadKeyError: two headers, or none of 1 to 255 visible ASCII characters. The message does not show it.
    """
    if not values:
        return None
    if len(values) > 1:
        raise BadKeyError("the request has more than one Idempotency-Key")
    text = values[0].decode("latin-1").strip(" \t")
    quoted = _QUOTED.fullmatch(text)
    if quoted is not None:
        text = re.sub(r'\\(["\\])', r"\1", quoted[1])
    elif not _BARE.fullmatch(text):
        text = ""
    if not _VISIBLE.fullmatch(text):
        raise BadKeyError(
            "an Idempotency-Key has 1 to 255 visible ASCII characters, in double quotes or, without quotes and commas, "
            "as it is"
        )
    return text


def id_of_key(owner: str | bytes | int | UUID, key: str) -> str:
    """What a key is stored under: a hash, so that no log, table or command shows the key or its owner.

    Args:
        owner: the user that it belongs to, as `scope=` of the middleware returns it.
        key: the key, without quotes.
    """
    named = id_of(owner, "what scope returns")
    return _digest(
        named if isinstance(named, bytes) else named.encode("utf-8", "surrogatepass"), key.encode()
    )


def fingerprint(method: str, path: str, query: bytes, body: bytes) -> bytes:
    """What must be equal in all requests with one key."""
    return _digest(method.encode(), path.encode("utf-8", "surrogatepass"), query, body).encode()


def _digest(*parts: bytes) -> str:
    # With their lengths: no two lists of parts have the same text.
    digest = hashlib.blake2b(digest_size=20)
    for part in parts:
        digest.update(len(part).to_bytes(8) + part)
    return digest.hexdigest()


def is_final(status: int, *, retry_after: bool) -> bool:
    """Whether an answer is the end of its request. After another one the same request may be sent again, and runs.

    Args:
        status: its code.
        retry_after: it has a `Retry-After`. An error with one is for now, such as the 409 of another middleware's
            request that is in progress.
    """
    if retry_after and status >= _FIRST_ERROR:
        return False
    return status < _FIRST_SERVER_ERROR and status not in _FREE


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it is stored.

    Args:
        status: its code.
        headers: without those of one connection, `Date` and `Set-Cookie`; see `kept`.
        body: None: it was too long to be stored.
    """

    status: int
    headers: Headers
    body: bytes | None

    def replayed(self) -> Headers:
        """Its headers, for another request."""
        headers = [(name, value) for name, value in self.headers if name != _EXPOSE]
        exposed = [value for name, value in self.headers if name == _EXPOSE]
        if not any(b"*" in value.split(b",") for value in exposed):
            exposed.append(REPLAYED)
        if self.body and not any(name == b"content-length" for name, _ in headers):
            headers.append((b"content-length", str(len(self.body)).encode()))
        return [*headers, (REPLAYED.lower(), b"true"), (_EXPOSE, b", ".join(exposed))]


def kept(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers of an answer that are stored."""
    named = [(bytes(name).lower(), bytes(value)) for name, value in headers]
    hops = {
        hop.strip().lower() for name, value in named if name == b"connection" for hop in value.split(b",")
    }
    return [(name, value) for name, value in named if name not in _NOT_STORED and name not in hops]


class AnswerCodec:
    """Stores answers: a line of JSON with status and headers, then the body as it is."""

    name = "http-answer/1"

    def encode(self, value: Answer) -> bytes:
        """The bytes of an answer."""
        headers = [[name.decode("latin-1"), content.decode("latin-1")] for name, content in value.headers]
        head = json.dumps([value.status, headers, value.body is not None])
        return head.encode() + b"\n" + (value.body or b"")

    def decode(self, data: bytes) -> Answer:
        """The answer."""
        head, _, body = data.partition(b"\n")
        status, headers, has_body = json.loads(head)
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        return Answer(status, pairs, body if has_body else None)


class Problem(Enum):
    """Why a request got no answer of the application: the last part of `type`, the status, the title, the detail."""

    MISSING_KEY = (
        "missing-key",
        400,
        "Idempotency-Key is missing",
        "Send this request with an Idempotency-Key.",
    )
    BAD_KEY = "bad-key", 400, "Idempotency-Key is not valid", ""
    NO_OWNER = (
        "no-owner",
        400,
        "Idempotency-Key belongs to no user",
        "A key belongs to a user, and this request names none.",
    )
    BODY_TOO_LONG = "body-too-long", 413, "The body is too long", ""
    BODY_INCOMPLETE = (
        "body-incomplete",
        400,
        "The body is not whole",
        "It ended before its Content-Length. Send the request again, with the same key.",
    )
    OTHER_REQUEST = (
        "other-request",
        422,
        "Idempotency-Key was used for another request",
        "The method, path, query or body differs from the first request with this key. Use a new key.",
    )
    IN_PROGRESS = (
        "in-progress",
        409,
        "A request with this Idempotency-Key is in progress",
        "Send it again, with the same key, for its answer.",
    )
    ANSWER_NOT_STORED = (
        "answer-not-stored",
        409,
        "The request was carried out before",
        (
            "There is no stored answer to send: it was too long, it cannot be read, or a person has recorded that the "
            "request took effect. It does not run again."
        ),
    )
    EFFECT_UNKNOWN = (
        "effect-unknown",
        409,
        "Whether the request took effect is unknown",
        "The server died, or gave the request up. A person has to find out; do not send it with another key.",
    )
    UNAVAILABLE = (
        "unavailable",
        503,
        "Idempotency-Key cannot be looked up or recorded",
        "Send the request again, with the same key.",
    )

    def __init__(self, word: str, status: int, title: str, detail: str) -> None:
        self.word: Final = word
        self.status: Final = status
        self.title: Final = title
        self.detail: Final = detail

    @property
    def urn(self) -> str:
        """Its `type`."""
        return f"urn:idempotent-consumer:{self.word}"

    def answer(
        self,
        detail: str = "",
        *,
        docs: str | None = None,
        retry_after_s: int | None = None,
        key: str | None = None,
    ) -> Answer:
        """As `application/problem+json` (RFC 9457).

        Args:
            detail: in the place of its own.
            docs: the address of a page for the caller, as `Link`.
            retry_after_s: seconds, as `Retry-After`.
            key: what a person names to the command line.
        """
        content = {
            "type": self.urn,
            "title": self.title,
            "status": self.status,
            "detail": detail or self.detail,
        }
        if key is not None:
            content["key"] = key
        body = json.dumps(content).encode()
        headers = [
            (b"content-type", b"application/problem+json"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
        ]
        if docs is not None:
            headers.append((b"link", f'<{docs}>; rel="describedby"; type="text/html"'.encode("latin-1")))
        if retry_after_s is not None:
            headers.append((b"retry-after", str(retry_after_s).encode()))
        return Answer(self.status, headers, body)


class NotStoredError(Exception):
    """Ends the call of a request whose answer is not stored.

    Attributes:
        raised: what the application raised before its answer was whole; None: it answered.
    """

    def __init__(self, why: str, raised: BaseException | None = None) -> None:
        super().__init__(why)
        self.raised: Final = raised


class Options(TypedDict, total=False):
    """The options that the middleware of every web framework has.

    Attributes:
        methods: of the requests that it protects; default: POST and PATCH.
        paths: those that it protects, as patterns of `fnmatch`, such as `/orders/*`; None, the default: all.
        required: whether a protected request without a key is refused, with 400; else, by default, it runs unprotected.
        wait_s: seconds that a request waits for the answer to one with its key that runs, before it is told so (409);
            default: 0.
        store: `final`, the default: answers after which the same request need not be sent again: all but 401, 403, 408,
            425, 429, 5xx and errors with a `Retry-After`. `all`: those too.
        max_body: bytes of a body that a protected request may have, and up to which an answer is stored; default: 1 MB.
        docs: the address of a page for callers, which problems link to; default: None.
    """

    methods: Collection[str]
    paths: Collection[str] | None
    required: bool
    wait_s: float
    store: Literal["final", "all"]
    max_body: int
    docs: str | None


class Rules:
    """What follows from the options of a middleware.

    Args:
        options: see `Options`.

    Attributes:
        required: as given.
        wait_s: as given.
        max_body: as given.

    Raises:
        ConfigurationError: an invalid option.
        TypeError: an option that does not exist.
    """

    def __init__(self, **options: Unpack[Options]) -> None:
        """Check the options."""
        unknown = sorted(options.keys() - Options.__annotations__.keys())
        if unknown:
            raise TypeError(f"{unknown[0]!r} is none of the options: {', '.join(Options.__annotations__)}")
        methods, paths = options.get("methods", METHODS), options.get("paths")
        store, docs = options.get("store", "final"), options.get("docs")
        for words, name in ((methods, "methods"), (paths, "paths")):
            if isinstance(words, str):
                raise ConfigurationError(f"{name} is a list of texts, not one: write [{words!r}]")
        if store not in ("final", "all"):
            raise ConfigurationError(f"store is 'final' or 'all', not {store!r}")
        if docs is not None and not (docs.isascii() and docs.isprintable() and not set(docs) & set('<>" ')):
            raise ConfigurationError(f"docs is the address of a page, not {docs!r}")
        self.required: Final = options.get("required", False)
        self.wait_s: Final = seconds(options.get("wait_s", 0.0), "wait_s", zero=True)
        self.max_body: Final = whole(options.get("max_body", MAX_BODY), "max_body")
        wrong = [pattern for pattern in paths or () if not pattern.startswith(("/", "*"))]
        if wrong:
            raise ConfigurationError(
                f"paths are patterns of whole paths, which begin with a slash: write '/{wrong[0]}', not {wrong[0]!r}"
            )
        self._methods = frozenset(method.upper() for method in methods)
        self._paths = None if paths is None else tuple(paths)
        self._stores_all = store == "all"
        self._docs = docs

    def protects(self, method: str, path: str) -> bool:
        """Whether a request is among those to be protected."""
        if method not in self._methods:
            return False
        return self._paths is None or any(fnmatchcase(path, pattern) for pattern in self._paths)

    def key(self, values: Sequence[bytes], owner: Callable[[], str]) -> str | Answer:
        """What a request's key is stored under; the answer to one that has none, or belongs to nobody.

        Args:
            values: of all its headers of this name.
            owner: returns the user that it belongs to.
        """
        try:
            key = key_in(values)
        except BadKeyError as error:
            return self.problem(Problem.BAD_KEY, str(error))
        if key is None:
            return self.problem(Problem.MISSING_KEY)
        user = owner()
        return id_of_key(user, key) if user else self.problem(Problem.NO_OWNER)

    def waited(self, process: Callable[[], Result]) -> Result:
        """The result of a request in a thread, which waits for another one with its key."""
        return repeat_while_held(process, self.wait_s)

    def stores(self, status: int, *, retry_after: bool) -> bool:
        """Whether such an answer is stored, and what its request wrote committed; see `is_final`."""
        return self._stores_all or is_final(status, retry_after=retry_after)

    def problem(
        self, problem: Problem, detail: str = "", *, retry_after_s: int | None = None, key: str | None = None
    ) -> Answer:
        """The answer that says why a request did not run."""
        return problem.answer(detail, docs=self._docs, retry_after_s=retry_after_s, key=key)

    def too_long(self) -> Answer:
        """The answer to a request whose body is too long."""
        return self.problem(
            Problem.BODY_TOO_LONG, f"A request with an Idempotency-Key may have {self.max_body} bytes."
        )

    def answer_to(self, result: Result, key: Callable[[], object]) -> Answer:
        """The answer to a request that did not run, or whose end was not recorded.

        Args:
            result: of its consumer.
            key: returns what a person names to the command line.
        """
        match result.outcome:
            case Outcome.DUPLICATE if result.replayed and result.value.body is not None:
                stored: Answer = result.value
                return Answer(stored.status, stored.replayed(), stored.body)
            case Outcome.DUPLICATE:
                return self.problem(Problem.ANSWER_NOT_STORED)
            case Outcome.IN_PROGRESS:
                return self.problem(Problem.IN_PROGRESS, retry_after_s=_RETRY_AFTER_S)
            case Outcome.REJECTED:
                return self.problem(Problem.OTHER_REQUEST)
            case Outcome.DEAD:
                return self.problem(Problem.EFFECT_UNKNOWN, key=str(key()))
            case _:
                return self.problem(Problem.UNAVAILABLE, retry_after_s=_RETRY_AFTER_S)


def plain_consumer(
    checker: AbstractIdempotentChecker | str, group: str, on_expired_lease: Any, session: type | None = None
) -> Consumer[Any]:
    """The consumer of the requests that threads run, by `process(message, call=, session=)`."""
    made: Consumer[Any] = consumer_of(
        "http",
        caller(session, is_async=False),
        checker=checker,
        group=group,
        codec=AnswerCodec(),
        fingerprint=body_of,
        on_expired_lease=on_expired_lease,
        # A server ends a request that takes too long by an exception in its thread, such as SystemExit.
        on_cancel="park" if on_expired_lease in (OnExpiredLease.PARK, "park") else "retry",
    )
    return made
