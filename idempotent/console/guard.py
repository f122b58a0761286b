"""Refuses requests to the console: who has not logged in, came from another site, or sent a form that is none."""

from __future__ import annotations

import hmac
import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from idempotent.errors import ConfigurationError
from idempotent.forks import free_in_child

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_SESSION_S: Final = 12 * 3600.0
_MOST_SESSIONS: Final = 1000
_MOST_BODY: Final = 2 * 2**20
_MOST_FIELDS: Final = 2000
_MIN_TOKEN: Final = 16
_NAME_LENGTH: Final = 100
_OPEN: Final = frozenset({"/login", "/static/console.css", "/static/console.js"})
# What is not here is a change, and refused with --read-only.
_HARMLESS: Final = frozenset({"/login", "/logout", "/read", "/body"})
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    # Not no-referrer: with that, browsers hide the Origin of our own forms too.
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use the console, and under which address.

    Args:
        host: where it listens.
        port: likewise.
        token: what a person types to log in; None: with `user_header`.
        user_header: the header in which a reverse proxy says who the user is; None: people log in with the token.
        public_url: the address that browsers use, if a reverse proxy has another: `https://ops.example.com`.
        read_only: refuse every change.

    Raises:
        ConfigurationError: a short token, neither a token nor a header, or an address that is none.
    """

    host: str
    port: int
    token: str | None = field(repr=False)
    user_header: str | None = None
    public_url: str | None = None
    read_only: bool = False

    def __post_init__(self) -> None:
        """Check what does not go together."""
        if (self.token is None) == (self.user_header is None):
            raise ConfigurationError(
                "the console needs a token, or --user-header, not both: who logs people in, it or a reverse proxy?"
            )
        if self.token is not None and len(self.token) < _MIN_TOKEN:
            raise ConfigurationError(
                f"the token of the console has {len(self.token)} characters; at least {_MIN_TOKEN} are safe: "
                "python -c 'import secrets; print(secrets.token_urlsafe())'"
            )
        if self.public_url is not None:
            parts = urlsplit(self.public_url)
            if parts.scheme not in ("http", "https") or not parts.netloc or parts.path not in ("", "/"):
                raise ConfigurationError(
                    f"--public-url is the address in browsers, such as https://ops.example.com, not {self.public_url!r}"
                )
        elif self.host in ("0.0.0.0", "::"):  # noqa: S104 - it is refused
            raise ConfigurationError(
                "the console on all interfaces needs --public-url, the address in browsers"
            )

    @property
    def origins(self) -> frozenset[str]:
        """The addresses in browsers, `scheme://host:port`."""
        names = {f"[{name}]" if ":" in name else name for name in {self.host, *LOOPBACK}}
        given = {f"http://{name}:{self.port}" for name in names} | {(self.public_url or "").rstrip("/")}
        found = {each.lower() for each in given - {""}}
        # Browsers leave out the port that is the scheme's own.
        for scheme, end in (("http:", ":80"), ("https:", ":443")):
            found |= {each.removesuffix(end) for each in found if each.startswith(scheme)}
        return frozenset(found)

    @property
    def hosts(self) -> frozenset[str]:
        """What the header Host may be."""
        return frozenset(urlsplit(each).netloc for each in self.origins)

    @property
    def is_https(self) -> bool:
        """Whether browsers reach it through TLS."""
        return self.public_url is not None and self.public_url.lower().startswith("https:")

    @property
    def cookie(self) -> str:
        """The name of the cookie: browsers share those of one host among its ports."""
        return f"{'__Host-' if self.is_https else ''}idempotent_{self.port}"


@dataclass(frozen=True, slots=True)
class Session:
    """A person who has logged in.

    Attributes:
        id: what the cookie has; empty with a reverse proxy, which needs no cookie.
        user: who it is, as he or the reverse proxy says.
        csrf: what each form must have.
        ends: when the session ends, on the clock of `Sessions`.
    """

    id: str = field(repr=False)
    user: str
    csrf: str = field(repr=False)
    ends: float


class Sessions:
    """Who has logged in, in the memory of this process.

    Args:
        token: what a person types to log in.
        clock: seconds.
    """

    def __init__(self, token: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._token = token
        self._clock = clock
        self._secret: Final = secrets.token_bytes(32)
        self._lock = free_in_child(threading.Lock())
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def find(self, cookie: str | None) -> Session | None:
        """The session of a cookie; None: none, or it has ended."""
        with self._lock:
            found = self._sessions.get(cookie or "")
            if found is not None and found.ends < self._clock():
                del self._sessions[found.id]
                return None
            return found

    def begin(self, user: str) -> Session:
        """A new session."""
        made = Session(secrets.token_urlsafe(32), user, secrets.token_urlsafe(32), self._clock() + _SESSION_S)
        with self._lock:
            self._sessions[made.id] = made
            while len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)
        return made

    def named(self, user: str) -> Session:
        """The session of a user whom each of his requests names: nothing of it is kept."""
        return Session("", user, hmac.digest(self._secret, _bytes(user), "sha256").hex(), math.inf)

    def end(self, session: Session) -> None:
        """Forget a session."""
        with self._lock:
            self._sessions.pop(session.id, None)

    def is_token(self, given: str) -> bool:
        """Whether it is the token. Takes the same time whichever characters differ."""
        return self._token is not None and hmac.compare_digest(_bytes(given), _bytes(self._token))


class Guard:
    """Around the pages: looks at host, origin, session and CSRF token, and adds the headers that protect a page.

    The pages find `session`, None for the login alone, and `form`, the first value of each field, in
    `request.state`; `request.state.fields` has all values.

    Args:
        app: the pages.
        access: who may use them.
        sessions: who has logged in.
        failed: makes the page that says why not.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        sessions: Sessions,
        failed: Callable[[Request, HTTPException], Response],
    ) -> None:
        self._app = app
        self._access = access
        self._sessions = sessions
        self._failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let the pages do so."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(raw=message["headers"]).update(_HEADERS)
            await send(message)

        try:
            answer = await self._answer(request)
        except HTTPException as error:
            answer = self._failed(request, error)
        await answer(scope, receive, protected)

    async def _answer(self, request: Request) -> ASGIApp:
        """What answers: the pages, or the way to the login. Raises HTTPException: the request is refused."""
        self._demand_own(request)
        request.state.session = session = self._session(request)
        is_post = request.method == "POST"
        if session is None and request.url.path not in _OPEN:
            if is_post:
                raise HTTPException(401, "Log in first.")
            return RedirectResponse("/login", 303)
        if is_post:
            await self._read_form(request, session)
        return self._app

    def _demand_own(self, request: Request) -> None:
        """Refuse a name of another site that points here, and a form of another site."""
        headers = request.headers
        if [each.lower() for each in headers.getlist("host")] not in [[host] for host in self._access.hosts]:
            raise HTTPException(
                421, "This is not an address of the console. If it is, start it with --public-url."
            )
        if request.method not in ("GET", "HEAD", "POST"):
            raise HTTPException(405, "Only GET and POST.")
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        is_own = site in (None, "same-origin") and (origin is None or origin.lower() in self._access.origins)
        if request.method == "POST" and not is_own:
            raise HTTPException(403, "The request came from another site.")

    def _session(self, request: Request) -> Session | None:
        """The session of the person who asks, whom a reverse proxy may name; None: nobody has logged in."""
        if self._access.user_header is None:
            return self._sessions.find(request.cookies.get(self._access.cookie))
        users = request.headers.getlist(self._access.user_header)
        user = users[0].strip() if len(users) == 1 else ""
        if not is_name(user):
            raise HTTPException(401, "The reverse proxy does not say who you are.")
        return self._sessions.named(user)

    async def _read_form(self, request: Request, session: Session | None) -> None:
        """Refuse a form that changes something, is too long, or is not of this session."""
        if self._access.read_only and request.url.path not in _HARMLESS:
            raise HTTPException(403, "The console was started with --read-only: nothing can be changed.")
        body = b""
        try:
            async for part in request.stream():
                body += part
                if len(body) > _MOST_BODY:
                    raise HTTPException(413, "The form is too long.")
            fields = parse_qs(body.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
        except ClientDisconnect:
            raise HTTPException(400, "The form is not complete.") from None
        except ValueError:
            raise HTTPException(400, "The form cannot be read.") from None
        request.state.fields = fields
        request.state.form = form = {name: values[0] for name, values in fields.items()}
        if session is None or request.url.path in _OPEN:
            return  # the form of /login needs no CSRF token: its origin is checked, and it asks for the login token
        if not hmac.compare_digest(_bytes(form.get("csrf", "")), _bytes(session.csrf)):
            raise HTTPException(
                403, "The form is not one of this session. Go back, load the page again, and retry."
            )


def is_name(user: str) -> bool:
    """Whether it can stand in a log as the name of a person."""
    return bool(user) and user.isprintable() and len(user) <= _NAME_LENGTH


def cookie_of(access: Access, session: Session | None) -> str:
    """The header that sets the cookie; None: that removes it."""
    value, age = ("", 0) if session is None else (session.id, int(_SESSION_S))
    secure = "; Secure" if access.is_https else ""
    return f"{access.cookie}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
