"""The console's pages: an ASGI application over the consumers of a registry, or over a store alone.

Long because every address of the console has its method here.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from idempotent.adapters.base import Adapter
from idempotent.admin import KeyFilter, KeyRecord
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.pauses import pause_of
from idempotent.console.audit import Audit
from idempotent.console.desks import (
    MOST,
    BusyError,
    ChangedError,
    Desk,
    Item,
    Proposal,
    Snapshot,
    key_item,
    name_of,
)
from idempotent.console.guard import Access, Guard, Sessions, cookie_of, is_name
from idempotent.console.pages import Pages, job_words, oldest, readable, static
from idempotent.console.stores import ConsoleStore
from idempotent.errors import ConfigurationError, IdempotentError, SchemaError, StoreError, described, mask
from idempotent.keys import Key, key_from_text
from idempotent.logs import EventLog
from idempotent.registry import Registry
from idempotent.views import keys as key_view
from idempotent.views.letters import in_full
from idempotent.views.text import count

log = EventLog(__name__)
PAGE: Final = 100
_ROWS: Final = 200
_NOTE_LENGTH: Final = 1000
_END_S: Final = 10.0
_LOOK_S: Final = 0.1
_KINDS: Final = frozenset({"letters", "keys", "lapsed"})
_NOTED: Final = frozenset({"drop", "retry", "done"})
_ACTIONS: Final = {
    "letters": frozenset({"redrive", "drop"}),
    "keys": frozenset({"retry", "done"}),
    "lapsed": frozenset({"retry", "done"}),
}


class Console:
    """The pages.

    Args:
        access: who may use them, and under which address.
        registry: the consumers; None: a store alone.
        adapter: makes an adapter that reads the letters of these consumers; None: no broker.
        checker: a store alone; None: those of the consumers.
        audit: where actions are noted.
        idle_s: seconds without a letter after which a reading ends.
        sessions: who has logged in; None: nobody yet.

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
        sessions: Sessions | None = None,
    ) -> None:
        self._access = access
        self._audit = audit or Audit(None)
        self._sessions = sessions or Sessions(access.token)
        self._idle_s = idle_s
        self._stores: list[ConsoleStore] = []
        self._desks: dict[str, Desk] = {}
        for consumer in () if registry is None else registry.consumers.values():
            store = self._store(consumer.checker)
            self._desks[consumer.name] = Desk(consumer.name, consumer.name, store, consumer, adapter, idle_s)
        if checker is not None:
            self._store(checker)
        self._pages = Pages(access=access, counts=self._counts)
        get, post = ["GET"], ["POST"]
        pages: list[tuple[str, Callable[[Request], Response], list[str]]] = [
            ("/", self._overview, get),
            ("/live", self._live, get),
            ("/login", self._login, ["GET", "POST"]),
            ("/logout", self._logout, post),
            ("/consumer", self._consumer, get),
            ("/group", self._group, get),
            ("/item", self._item, get),
            ("/proposal", self._proposal, get),
            ("/outbox", self._outbox, get),
            ("/audit", self._audited, get),
            ("/read", self._read, post),
            ("/body", self._body, post),
            ("/stop", self._stop, post),
            ("/propose", self._propose, post),
            ("/confirm", self._confirm, post),
            ("/outbox/retry", self._retry, post),
            ("/pause", self._pause, post),
            ("/resume", self._pause, post),
        ]
        inner = Starlette(
            routes=[
                *(Route(path, page, methods=methods) for path, page, methods in pages),
                Route("/static/{name}", static, methods=get),
            ],
            exception_handlers={
                IdempotentError: self._failed,
                HTTPException: self._failed,
                Exception: self._failed,
            },
        )
        self.app: Final = Guard(inner, access, self._sessions, self._refused)

    def close(self) -> None:
        """Let what is being done stop after the letter that it is at, and end. The checkers stay open."""
        until = time.monotonic() + _END_S
        while (busy := [desk.job for desk in self._all_desks() if desk.is_busy]) and time.monotonic() < until:
            for job in busy:
                assert job is not None
                job.stop.set()
                job.ended.wait(_LOOK_S)
        for store in self._stores:
            store.close()

    # Pages that show something.

    def _overview(self, request: Request) -> Response:
        for store in self._stores:
            self._add_desks(store)
        return self._page(request, "overview.html", desks=self._all_desks(), stores=self._stores)

    def _live(self, _: Request) -> Response:
        """The numbers of the pages, by the `data-live` of their elements."""
        numbers: dict[str, str | bool] = {}
        for desk in self._all_desks():
            numbers |= {f"{name}:{desk.id}": f"{number:,}" for name, number in self._counts(desk).items()}
            numbers[f"busy:{desk.id}"] = desk.is_busy
            numbers[f"job:{desk.id}"] = job_words(desk)
        for at, store in enumerate(self._stores):
            counted = store.counted(0)
            if counted is not None and (outbox := counted.outbox) is not None:
                numbers[f"waiting:{at}"], numbers[f"held:{at}"] = f"{outbox.waiting:,}", f"{outbox.held:,}"
                numbers[f"oldest:{at}"] = oldest(outbox)
        return JSONResponse(numbers)

    def _consumer(self, request: Request) -> Response:
        desk = self._desk(request.query_params)
        if desk.snapshot is None and desk.job is None:
            desk.read()
        can, pause = desk.pauses is not None, None
        if can and desk.store is not None:
            with suppress(StoreError):  # the reading says that the store does not answer
                pause = pause_of(desk.store.checker, desk.name)
        return self._page(request, "consumer.html", desk=desk, most=MOST, can_pause=can, pause=pause)

    def _group(self, request: Request) -> Response:
        """The members of a group of errors, or the lapsed claims, a page at a time."""
        query = request.query_params
        desk, kind = self._desk(query), query.get("kind", "letters")
        snapshot = _snapshot(desk)
        if kind not in _KINDS:
            raise HTTPException(404)
        error = query.get("error")
        found = [each for each in snapshot.of(kind) if error is None or each.error == error]
        names = [*map(name_of, found)]
        start = bisect_right(names, (query.get("after", ""), query.get("id", "")))
        # Copies of a letter have one place: they stay together.
        end = bisect_right(names, names[start + PAGE - 1]) if len(names) > start + PAGE else len(names)
        return self._page(
            request,
            "group.html",
            desk=desk,
            kind=kind,
            error=error,
            total=len(found),
            items=found[start:end],
            more=found[end - 1] if end < len(found) else None,
            snapshot=snapshot,
            actions=sorted(_ACTIONS[kind], reverse=True),
        )

    def _item(self, request: Request) -> Response:
        """One letter, or one key, with what the store has of its key now."""
        query = request.query_params
        desk = self._desk(query)
        kind, name = query.get("kind", "letters"), query.get("id", "")
        found = None if desk.snapshot is None else _found(desk.snapshot, kind, name)
        return self._one(request, desk, kind, name, found)

    def _one(
        self, request: Request, desk: Desk, kind: str, name: str, found: Item | None, **more: Any
    ) -> Response:
        seen, error, record = None if found is None else found.record, "", None
        if kind == "letters" and found is None:
            raise ChangedError("This letter is not among those that were read last.")
        letter = None if found is None else found.letter
        key = _key(desk, name) if letter is None else letter.key
        if key is not None:
            try:
                record = _record(desk, key)
            except StoreError as failure:
                error = mask(str(failure))
        values = None if record is None else key_view.in_full(record)
        return self._page(
            request,
            "item.html",
            desk=desk,
            kind=kind,
            id=name,
            item=found,
            letter=None if letter is None else in_full(letter),
            record=record,
            values=values,
            store_error=error,
            is_changed=record is not None and seen is not None and record.state != seen.state,
            **{"body": None, **more},
        )

    def _proposal(self, request: Request) -> Response:
        desk = self._desk(request.query_params)
        return self._page(request, "proposal.html", desk=desk, proposal=_proposed(desk, request.query_params))

    def _outbox(self, request: Request) -> Response:
        store = self._store_of(request.query_params)
        assert store.outbox is not None
        held, stats, error = [], None, ""
        try:
            stats = store.outbox.stats()
            held = store.outbox.listed(_ROWS, held=True)
        except SchemaError:
            error = "This store has no outbox."
        except StoreError as failure:
            error = mask(str(failure))
        at = self._stores.index(store)
        return self._page(
            request, "outbox.html", store=store, at=at, stats=stats, held=held, error=error, most=_ROWS
        )

    def _audited(self, request: Request) -> Response:
        entries = self._audit.latest()
        return self._page(request, "audit.html", entries=entries[:_ROWS], path=self._audit.path)

    # What a person does.

    def _login(self, request: Request) -> Response:
        """Ask for a token and a name. The token in the address fills its field; it logs nobody in."""
        is_post = request.method == "POST"
        given: dict[str, str] = request.state.form if is_post else dict(request.query_params)
        token, user, why, status = given.get("token", ""), given.get("name", "").strip(), "", 200
        if is_post:
            if self._sessions.is_throttled:
                why, status = "Too many wrong tokens. Wait a minute.", 429
            elif not is_name(user):
                why, status = "Say who you are: the audit names you.", 400
            elif not self._sessions.is_token(token):
                log.warning("console_login_refused")  # not the name, which may be a token in the wrong field
                why, status = "That is not the token.", 401
            else:
                answer = RedirectResponse("/", 303)
                answer.headers.append("set-cookie", cookie_of(self._access, self._sessions.begin(user)))
                return answer
        return self._page(request, "login.html", status, token=token, user=user, why=why)

    def _logout(self, request: Request) -> Response:
        self._sessions.end(request.state.session)
        answer = RedirectResponse("/login", 303)
        answer.headers.append("set-cookie", cookie_of(self._access, None))
        return answer

    def _read(self, request: Request) -> Response:
        desk = self._desk(request.state.form)
        desk.read()
        return _to("/consumer", desk=desk.id)

    def _body(self, request: Request) -> Response:
        """The body of a letter, on a page or as a file."""
        form = request.state.form
        desk, place = self._desk(form), form.get("id", "")
        found = None if desk.snapshot is None else _found(desk.snapshot, "letters", place)
        if found is None or not desk.has_letters:
            raise ChangedError
        noted = self._audit.begin(request.state.session.user, "body", desk.name, [found.label])
        try:
            body = desk.body(place)
        except IdempotentError as error:
            self._audit.end(noted, mask(str(error)))
            raise
        self._audit.end(noted, "downloaded" if "download" in form else "shown")
        if "download" in form:
            attachment = {"content-disposition": 'attachment; filename="body.bin"'}
            return Response(body or b"", media_type="application/octet-stream", headers=attachment)
        return self._one(request, desk, "letters", place, found, body=readable(body))

    def _stop(self, request: Request) -> Response:
        desk = self._desk(request.state.form)
        if desk.job is not None and desk.is_busy:
            noted = self._audit.begin(request.state.session.user, "stop", desk.name, [desk.job.words])
            desk.job.stop.set()
            self._audit.end(noted, "asked to stop")
        return _to("/consumer", desk=desk.id)

    def _propose(self, request: Request) -> Response:
        form, fields = request.state.form, request.state.fields
        desk, kind, action = self._desk(form), form.get("kind", ""), form.get("action", "")
        if action not in _ACTIONS.get(kind, ()) or (kind == "letters" and not desk.has_letters):
            raise HTTPException(400, "There is no such action.")
        snapshot = None if "seen" in fields else desk.shown(form.get("reading", ""))
        if snapshot is None:
            items = self._as_seen(desk, fields["seen"])
        else:
            items = _chosen(snapshot.of(kind), form, fields.get("id", []))
        if not items:
            raise ChangedError("Nothing was chosen, or all of it has changed since it was shown. Look again.")
        return _to("/proposal", desk=desk.id, id=desk.propose(action, items, snapshot).id)

    def _as_seen(self, desk: Desk, seen: Iterable[str]) -> list[Item]:
        """The keys of a form that are still as they were when it was shown."""
        items = []
        for each in seen:
            key = _key(desk, each.partition(".")[0])
            record = None if key is None else _record(desk, key)
            if record is not None and record.state == each:
                items.append(key_item(desk.name, record))
        return items

    def _confirm(self, request: Request) -> Response:
        form = request.state.form
        desk = self._desk(form)
        proposal, note = _proposed(desk, form), form.get("note", "").strip()[:_NOTE_LENGTH]
        if proposal.action in _NOTED and not note:
            raise HTTPException(400, "Write a note that says why. Go back.")
        rate = _rate(form.get("rate", ""))
        if desk.is_busy:
            raise BusyError
        labels = [each.label for each in proposal.items]
        noted = self._audit.begin(request.state.session.user, proposal.action, desk.name, labels, note)

        def on_end(result: str) -> None:
            self._audit.end(noted, result)

        try:
            more = f"{note} ({request.state.session.user})"
            desk.confirm(proposal, more, on_end, rate=rate, include_unknown="include_unknown" in form)
        except IdempotentError as error:
            on_end(str(error))
            raise
        return _to("/consumer", desk=desk.id)

    def _pause(self, request: Request) -> Response:
        """Let the messages of a consumer wait in the broker, or go on."""
        form, user = request.state.form, request.state.session.user
        desk, note = self._desk(form), form.get("note", "").strip()[:_NOTE_LENGTH]
        action = request.url.path.removeprefix("/")
        if desk.pauses is None:
            raise HTTPException(400, "The store of this consumer has no keys that could pause it.")
        if action == "pause" and not note:
            raise HTTPException(400, "Write a note that says why. Go back.")
        noted = self._audit.begin(user, action, desk.name, [desk.name], note)
        try:
            if action == "pause":
                is_done = desk.pauses.pause(desk.name, by=user, note=note)[1]
            else:
                is_done = desk.pauses.resume(desk.name) is not None
        except IdempotentError as error:
            self._audit.end(noted, mask(str(error)))
            raise
        self._audit.end(noted, "done" if is_done else "it was so before")
        return _to("/consumer", desk=desk.id)

    def _retry(self, request: Request) -> Response:
        """Let relays try held messages of an outbox again: one, or all."""
        form = request.state.form
        store = self._store_of(form)
        message_id = form.get("id")
        what = ["all that is held"] if message_id is None else [message_id]
        noted = self._audit.begin(request.state.session.user, "outbox retry", store.name, what)
        assert store.outbox is not None
        try:
            lanes, freed = store.outbox.retry(message_id), store.outbox.free()
        except IdempotentError as error:
            self._audit.end(noted, mask(str(error)))
            raise
        self._audit.end(noted, f"{count(lanes, 'refused message')} will be tried again, {freed:,} freed")
        return _to("/outbox", store=self._stores.index(store))

    # Errors, and how a page is made.

    def _refused(self, status: int, why: str) -> Response:
        return self._pages.page("error.html", status, session=None, why=why, status=status)

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
        session = getattr(request.state, "session", None)
        return self._pages.page("error.html", status, session=session, why=why, status=status)

    def _page(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        return self._pages.page(template, status, session=request.state.session, **values)

    # What there is.

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
        known = {desk.name for desk in self._desks.values() if desk.store is store}
        for name in sorted({each.consumer for each in counted.keys} - known if counted is not None else ()):
            made = f"{self._stores.index(store)}/{name}"
            self._desks.setdefault(made, Desk(made, name, store, idle_s=self._idle_s))

    def _all_desks(self) -> list[Desk]:
        return [*self._desks.copy().values()]

    def _desk(self, given: Any) -> Desk:
        name = given.get("desk", "")
        if name not in self._desks:
            for store in self._stores:
                self._add_desks(store)
        if name not in self._desks:
            raise HTTPException(404, "There is no such consumer.")
        return self._desks[name]

    def _store_of(self, given: Any) -> ConsoleStore:
        number = given.get("store", "")
        if not (number.isascii() and number.isdigit() and int(number[:9]) < len(self._stores)):
            raise HTTPException(404, "There is no such store.")
        store = self._stores[int(number[:9])]
        if store.outbox is None:
            raise HTTPException(404, "This store has no outbox.")
        return store

    def _counts(self, desk: Desk) -> dict[str, int]:
        counted = None if desk.store is None else desk.store.counted(0)
        return {} if counted is None or counted.error else counted.of(desk.name)


def _snapshot(desk: Desk) -> Snapshot:
    if desk.snapshot is None:
        raise ChangedError("The letters have not been read yet.")
    return desk.snapshot


def _found(snapshot: Snapshot, kind: str, name: str) -> Item | None:
    return next((each for each in snapshot.of(kind) if each.id == name), None) if kind in _KINDS else None


def _chosen(shown: Sequence[Item], form: dict[str, str], ids: Sequence[str]) -> list[Item]:
    """Those of a form: some, or a whole group, as they were shown."""
    if "all" in form:
        return [each for each in shown if form.get("error") in (None, each.error)]
    wanted = frozenset(ids)
    return [each for each in shown if each.id in wanted]


def _key(desk: Desk, text: str) -> Key | None:
    """The key of a hash, of a readable text, or of the id that the consumer recognises a message by."""
    try:
        return key_from_text(text) or key_from_text(f"{desk.name}:{text}")
    except ValueError:
        return None  # %XX that is not UTF-8


def _record(desk: Desk, key: Key) -> KeyRecord | None:
    """What the store has of a key now. Raises HTTPException: it is a key of another consumer, or of none."""
    record = None if desk.admin is None else desk.admin.get(key)
    if record is not None and not KeyFilter(desk.name).matches(record):
        raise HTTPException(
            404, f"{record.text} is no key of {desk.name}. Look it up on the page of its own consumer."
        )
    return record


def _proposed(desk: Desk, given: Any) -> Proposal:
    found = desk.proposals.get(given.get("id", ""))
    if found is None:
        raise ChangedError("This was confirmed already, by you or somebody else, or is too old. Look again.")
    return found


def _rate(text: str) -> float | None:
    """Messages a second. Raises HTTPException: it is no number."""
    try:
        rate = float(text) if text.strip() else None
    except ValueError:
        rate = -1.0
    if rate is not None and not 0.001 <= rate <= 1_000_000:  # noqa: PLR2004 - as `redrive` has it
        raise HTTPException(400, "The rate is a number of messages a second, such as 10. Go back.")
    return rate


def _to(path: str, **values: Any) -> Response:
    """Go there after a POST."""
    return RedirectResponse(f"{path}?{urlencode(values, errors='surrogatepass')}", 303)
