"""The console as an ASGI application, and its pages that are not about one consumer: overview, login, audit, outbox."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from idempotent.adapters.base import Adapter
from idempotent.admin import Pause
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.console.audit import Audit
from idempotent.console.consumer_pages import ConsumerPages
from idempotent.console.desks import BusyError, ChangedError, Desk
from idempotent.console.guard import Access, Guard, Sessions, cookie_of, is_name
from idempotent.console.pages import Pages, is_poll, redirect
from idempotent.console.stores import ConsoleStore
from idempotent.errors import ConfigurationError, IdempotentError, SchemaError, StoreError, described, mask
from idempotent.logs import EventLog
from idempotent.registry import Registry
from idempotent.views.text import count

log = EventLog(__name__)
_ROWS: Final = 200
_END_S: Final = 10.0
_LOOK_S: Final = 0.1


class Console:
    """The console over the consumers of a registry, or over a store alone.

    Args:
        access: who may use it, and under which address.
        registry: the consumers; None: a store alone.
        adapter: makes an adapter that reads the letters of these consumers; None: no broker.
        checker: a store alone; None: those of the consumers.
        audit: where actions are noted.
        idle_s: seconds without a letter after which a reading ends.

    Attributes:
        app: the ASGI application.
    """

    def __init__(
        self,
        access: Access,
        *,
        registry: Registry | None = None,
        adapter: Callable[[], Adapter] | None = None,
        checker: AbstractIdempotentChecker | None = None,
        audit: Audit | None = None,
        idle_s: float = 3.0,
    ) -> None:
        self._access = access
        self._audit = audit or Audit(None)
        self._sessions = Sessions(access.token)
        self._idle_s = idle_s
        self._stores: list[ConsoleStore] = []
        self._desks: dict[str, Desk] = {}
        for consumer in () if registry is None else registry.consumers.values():
            store = self._store(consumer.checker)
            self._desks[consumer.name] = Desk(consumer.name, consumer.name, store, consumer, adapter, idle_s)
        if checker is not None:
            self._store(checker)
        self._pages = Pages(access)
        inner = Starlette(
            routes=[
                Route("/", self._overview),
                Route("/login", self._login, methods=["GET", "POST"]),
                Route("/logout", self._logout, methods=["POST"]),
                Route("/audit", self._audited),
                Route("/outbox", self._outbox),
                Route("/outbox/retry", self._retry, methods=["POST"]),
                Mount("/static", StaticFiles(packages=[("idempotent.console", "static")])),
                *ConsumerPages(self._pages, self._audit, self._desk).routes,
            ],
            exception_handlers=dict.fromkeys((IdempotentError, HTTPException, Exception), self._failed),
        )
        self.app: Final = Guard(inner, access, self._sessions, self._failed)

    def close(self) -> None:
        """Let what is being done stop after the letter that it is at, and end. The checkers stay open."""
        until = time.monotonic() + _END_S
        while (
            busy := [*filter(None, (desk.busy for desk in self._all_desks()))]
        ) and time.monotonic() < until:
            for job in busy:
                job.stop.set()
                job.ended.wait(_LOOK_S)
        for store in self._stores:
            store.close()

    def _overview(self, request: Request) -> Response:
        """All consumers and stores, with what waits for a person."""
        # The script takes numbers alone, which are counted in the background: it waits for no store.
        asked = [] if is_poll(request) else self._stores
        for store in asked:
            self._add_desks(store)
        desks = self._all_desks()
        pauses: dict[str, Pause] = {}
        for store in asked:
            theirs = {desk.name: desk.id for desk in desks if desk.store is store}
            pauses |= {theirs[name]: pause for name, pause in store.pauses(theirs).items()}
        return self._pages.show(request, "overview.html", desks=desks, stores=self._stores, pauses=pauses)

    def _login(self, request: Request) -> Response:
        """Ask for a token and a name. The token in the address fills its field; it logs nobody in."""
        is_post = request.method == "POST"
        given: dict[str, str] = request.state.form if is_post else dict(request.query_params)
        token, user, why, status = given.get("token", ""), given.get("name", "").strip(), "", 200
        if is_post:
            if not is_name(user):
                why, status = "Say who you are: the audit names you.", 400
            elif not self._sessions.is_token(token):
                log.warning("console_login_refused")  # not the name, which may be a token in the wrong field
                why, status = "That is not the token.", 401
            else:
                answer = RedirectResponse("/", 303)
                answer.headers.append("set-cookie", cookie_of(self._access, self._sessions.begin(user)))
                return answer
        return self._pages.show(request, "login.html", status, token=token, user=user, why=why)

    def _logout(self, request: Request) -> Response:
        self._sessions.end(request.state.session)
        answer = RedirectResponse("/login", 303)
        answer.headers.append("set-cookie", cookie_of(self._access, None))
        return answer

    def _audited(self, request: Request) -> Response:
        """Who did what."""
        entries = self._audit.latest()[:_ROWS]
        return self._pages.show(request, "audit.html", entries=entries, path=self._audit.path)

    def _outbox(self, request: Request) -> Response:
        """What an outbox has to publish, and the messages that a broker refuses."""
        at, store = self._store_of(request.query_params)
        assert store.outbox is not None
        held, stats, error = [], None, ""
        try:
            stats = store.outbox.stats()
            held = store.outbox.listed(_ROWS, held=True)
        except SchemaError:
            error = "This store has no outbox."
        except StoreError as failure:
            error = mask(str(failure))
        return self._pages.show(
            request, "outbox.html", store=store, at=at, stats=stats, held=held, error=error, most=_ROWS
        )

    def _retry(self, request: Request) -> Response:
        """Let relays try held messages of an outbox again: one, or all."""
        form = request.state.form
        at, store = self._store_of(form)
        assert store.outbox is not None
        message_id, user = form.get("id"), request.state.session.user
        what = ["all that is held"] if message_id is None else [message_id]
        with self._audit.noted(user, "outbox retry", store.name, what) as end:
            lanes, freed = store.outbox.retry(message_id), store.outbox.free()
            end(f"{count(lanes, 'refused message')} will be tried again, {freed:,} freed")
        return redirect("/outbox", store=at)

    def _failed(self, request: Request, error: Exception) -> Response:
        """A page for an error. What is no fault of the console's has its own words."""
        status, why = 500, "The console failed; its log says more."
        if isinstance(error, HTTPException):
            status, why = error.status_code, error.detail
        elif isinstance(error, (BusyError, ChangedError)):
            status, why = 409, str(error)
        elif isinstance(error, IdempotentError):
            status, why = 503, mask(str(error))
        else:
            log.error("console_failed", extra={"error": described(error)}, exc_info=error)
        return self._pages.show(request, "error.html", status, why=why, status=status)

    def _store(self, checker: AbstractIdempotentChecker) -> ConsoleStore | None:
        """The store of a checker, one for all checkers of the same tables; None: it keeps no keys, or shows none."""
        if checker.remembers.by_position:
            return None
        for each in self._stores:
            if each.is_of(checker):
                return each
        try:
            self._stores.append(ConsoleStore(checker))
        except ConfigurationError:  # a checker of the user's without an admin
            return None
        return self._stores[-1]

    def _add_desks(self, store: ConsoleStore) -> None:
        """Know the consumers of which a store has keys."""
        counted = store.counted()
        known = {desk.name for desk in self._all_desks() if desk.store is store}
        for name in sorted({each.consumer for each in counted.keys} - known if counted is not None else ()):
            made = f"{self._stores.index(store)}/{name}"
            self._desks.setdefault(made, Desk(made, name, store, idle_s=self._idle_s))

    def _all_desks(self) -> list[Desk]:
        return [*self._desks.copy().values()]

    def _desk(self, given: Any) -> Desk:
        """The consumer that an address or a form names."""
        name = given.get("desk", "")
        if name not in self._desks:
            for store in self._stores:
                self._add_desks(store)
        if name not in self._desks:
            raise HTTPException(404, "There is no such consumer.")
        return self._desks[name]

    def _store_of(self, given: Any) -> tuple[str, ConsoleStore]:
        """The number of the store that an address or a form names, and the store, if it may have an outbox."""
        number = given.get("store", "")
        store = {str(at): store for at, store in enumerate(self._stores)}.get(number)
        if store is None or store.outbox is None:
            raise HTTPException(404, "There is no such store, or it has no outbox.")
        return number, store
