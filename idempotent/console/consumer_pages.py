"""The pages of one consumer: its dead letters and keys in groups, each of them, and what people decide about them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from idempotent.admin import KeyFilter, KeyRecord
from idempotent.console.audit import Audit
from idempotent.console.desks import (
    MOST,
    BusyError,
    ChangedError,
    Desk,
    Item,
    Proposal,
    key_item,
    name_of,
)
from idempotent.console.pages import Pages, is_poll, readable, redirect
from idempotent.errors import ConfigurationError, StoreError, mask
from idempotent.keys import Key, key_from_text
from idempotent.redrive import LEAST_RATE
from idempotent.validation import number
from idempotent.views import keys as key_view

PAGE: Final = 100
_NOTE_LENGTH: Final = 1000
# What a person may do with each kind.
_ACTIONS: Final = {"letters": ("redrive", "drop"), "keys": ("retry", "done"), "lapsed": ("retry", "done")}


class ConsumerPages:
    """The pages under /consumer and below it.

    Args:
        pages: makes them of templates.
        audit: where actions are noted.
        find: the consumer that the field `desk` of an address or a form names.
    """

    def __init__(self, pages: Pages, audit: Audit, find: Callable[[Any], Desk]) -> None:
        self._pages = pages
        self._audit = audit
        self._desk = find

    @property
    def routes(self) -> list[Route]:
        """The addresses."""
        return [
            Route("/consumer", self._consumer),
            Route("/group", self._group),
            Route("/item", self._item),
            Route("/proposal", self._proposal),
            Route("/read", self._read, methods=["POST"]),
            Route("/body", self._body, methods=["POST"]),
            Route("/stop", self._stop, methods=["POST"]),
            Route("/propose", self._propose, methods=["POST"]),
            Route("/confirm", self._confirm, methods=["POST"]),
            Route("/pause", self._pause, methods=["POST"]),
            Route("/resume", self._pause, methods=["POST"]),
        ]

    def _consumer(self, request: Request) -> Response:
        """Its groups, after a first reading."""
        desk = self._desk(request.query_params)
        if desk.snapshot is None and desk.job is None:
            desk.read()
        asked = None if is_poll(request) else desk.store
        pause = None if asked is None else asked.pauses([desk.name]).get(desk.name)
        return self._pages.show(request, "consumer.html", desk=desk, most=MOST, pause=pause)

    def _group(self, request: Request) -> Response:
        """The members of a group of errors, or the lapsed claims, a page at a time."""
        query = request.query_params
        desk, kind, error = self._desk(query), query.get("kind", "letters"), query.get("error")
        snapshot = desk.snapshot
        if snapshot is None:
            raise ChangedError("The letters have not been read yet.")
        if kind not in _ACTIONS:
            raise HTTPException(404)
        found = [each for each in snapshot.of[kind] if error is None or each.error == error]
        names = [*map(name_of, found)]
        start = bisect_right(names, (query.get("after", ""), query.get("id", "")))
        # Copies of a letter have one place: they stay together.
        end = bisect_right(names, names[start + PAGE - 1]) if len(names) > start + PAGE else len(names)
        return self._pages.show(
            request,
            "group.html",
            desk=desk,
            kind=kind,
            error=error,
            total=len(found),
            items=found[start:end],
            more=found[end - 1] if end < len(found) else None,
            snapshot=snapshot,
            actions=_ACTIONS[kind],
        )

    def _item(self, request: Request) -> Response:
        """One letter, or one key, with what the store has of its key now."""
        query = request.query_params
        desk, kind, name = self._desk(query), query.get("kind", "letters"), query.get("id", "")
        return self._one(request, desk, kind, name, _found(desk, kind, name))

    def _one(
        self,
        request: Request,
        desk: Desk,
        kind: str,
        name: str,
        found: Item | None,
        body: Mapping[str, Any] | None = None,
    ) -> Response:
        if kind == "letters" and found is None:
            raise ChangedError("This letter is not among those that were read last.")
        error, record = "", None
        key = _key(desk, name) if found is None else found.key
        if key is not None:
            try:
                record = _record(desk, key)
            except StoreError as failure:
                error = mask(str(failure))
        return self._pages.show(
            request,
            "item.html",
            desk=desk,
            kind=kind,
            id=name,
            item=found,
            record=record,
            values=None if record is None else key_view.in_full(record),
            store_error=error,
            is_changed=not error and found is not None and found.state != (record and record.state),
            body=body,
        )

    def _proposal(self, request: Request) -> Response:
        """What a person has yet to confirm."""
        desk = self._desk(request.query_params)
        proposal = _proposed(desk, request.query_params)
        return self._pages.show(request, "proposal.html", desk=desk, proposal=proposal)

    def _read(self, request: Request) -> Response:
        desk = self._desk(request.state.form)
        desk.read()
        return redirect("/consumer", desk=desk.id)

    def _body(self, request: Request) -> Response:
        """The body of a letter, on a page or as a file."""
        form = request.state.form
        desk, place = self._desk(form), form.get("id", "")
        found = _found(desk, "letters", place)
        if found is None or not desk.has_letters:
            raise ChangedError
        with self._noted(request, "body", desk, [found.label]) as end:
            body = desk.body(place)
            end("downloaded" if "download" in form else "shown")
        if "download" in form:
            attachment = {"content-disposition": 'attachment; filename="body.bin"'}
            return Response(body or b"", media_type="application/octet-stream", headers=attachment)
        return self._one(request, desk, "letters", place, found, body=readable(body))

    def _stop(self, request: Request) -> Response:
        desk = self._desk(request.state.form)
        if job := desk.busy:
            with self._noted(request, "stop", desk, [job.words]) as end:
                job.stop.set()
                end("asked to stop")
        return redirect("/consumer", desk=desk.id)

    def _propose(self, request: Request) -> Response:
        """Note what a person has chosen, as it was shown, and ask for a confirmation."""
        form, fields = request.state.form, request.state.fields
        desk, kind, action = self._desk(form), form.get("kind", ""), form.get("action", "")
        if action not in _ACTIONS.get(kind, ()) or (kind == "letters" and not desk.has_letters):
            raise HTTPException(400, "There is no such action.")
        snapshot = None if "seen" in fields else desk.shown(form.get("reading", ""))
        if snapshot is None:
            items = _as_seen(desk, fields["seen"])
        else:
            items = _chosen(snapshot.of[kind], form, fields.get("id", []))
        if not items:
            raise ChangedError("Nothing was chosen, or all of it has changed since it was shown. Look again.")
        return redirect("/proposal", desk=desk.id, id=desk.propose(action, items, snapshot).id)

    def _confirm(self, request: Request) -> Response:
        """Begin what was proposed."""
        form = request.state.form
        desk = self._desk(form)
        proposal, note = _proposed(desk, form), _note(form)
        options = {"rate": _number(form, "rate"), "include_unknown": "include_unknown" in form}
        if canary := _number(form, "canary"):
            options["canary"] = math.ceil(canary)
        if proposal.action != "redrive" and not note:
            raise HTTPException(400, "Write a note that says why. Go back.")
        if desk.busy:
            raise BusyError
        labels = [each.label for each in proposal.items]
        with self._noted(request, proposal.action, desk, labels, note) as end:
            signed = f"{note} ({request.state.session.user})"
            desk.confirm(proposal, signed, end, **options)
        return redirect("/consumer", desk=desk.id)

    def _pause(self, request: Request) -> Response:
        """Let the messages of a consumer wait in the broker, or go on."""
        form = request.state.form
        desk, note, action = self._desk(form), _note(form), request.url.path.removeprefix("/")
        if desk.pauses is None:
            raise HTTPException(400, "The store of this consumer has no keys that could pause it.")
        if action == "pause" and not note:
            raise HTTPException(400, "Write a note that says why. Go back.")
        with self._noted(request, action, desk, [desk.name], note) as end:
            if action == "pause":
                is_done = desk.pauses.pause(desk.name, by=request.state.session.user, note=note)[1]
            else:
                is_done = desk.pauses.resume(desk.name) is not None
            end("done" if is_done else "it was so before")
        return redirect("/consumer", desk=desk.id)

    def _noted(self, request: Request, action: str, desk: Desk, what: Sequence[str], note: str = "") -> Any:
        return self._audit.noted(request.state.session.user, action, desk.name, what, note)


def _found(desk: Desk, kind: str, name: str) -> Item | None:
    """A letter or key of the last reading, by its id."""
    if desk.snapshot is None or kind not in _ACTIONS:
        return None
    return next((each for each in desk.snapshot.of[kind] if each.id == name), None)


def _chosen(shown: Sequence[Item], form: dict[str, str], ids: Sequence[str]) -> list[Item]:
    """Those of a form: some, or a whole group, as they were shown."""
    if "all" in form:
        return [each for each in shown if form.get("error") in (None, each.error)]
    wanted = frozenset(ids)
    return [each for each in shown if each.id in wanted]


def _as_seen(desk: Desk, seen: Iterable[str]) -> list[Item]:
    """The keys of a form that are still as they were when it was shown."""
    items = []
    for each in seen:
        key = _key(desk, each.partition(".")[0])
        record = None if key is None else _record(desk, key)
        if record is not None and record.state == each:
            items.append(key_item(desk.name, record))
    return items


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


def _note(form: dict[str, str]) -> str:
    return form.get("note", "").strip()[:_NOTE_LENGTH]


def _number(form: dict[str, str], name: str) -> float | None:
    """A number of messages; None: the field is empty. Raises HTTPException: it is no number."""
    text = form.get(name, "").strip()
    try:
        return number(float(text), name, least=LEAST_RATE) if text else None
    except (ValueError, ConfigurationError):
        raise HTTPException(400, f"{text!r} is no number of messages, such as 10. Go back.") from None
