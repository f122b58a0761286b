"""`idempotent pause` and `idempotent resume`: let the messages of a consumer wait in the broker, and go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer

from idempotent.admin import KeyFilter, Pause
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.pauses import Pauses, demand_pausable, pauses_in
from idempotent.checkers.urls import StoreKind, scheme_of
from idempotent.cli.exits import ExitCode
from idempotent.cli.options import JsonOption, PrefixOption, TableOption, UrlOption
from idempotent.cli.stores import checker_at, offsets_at
from idempotent.cli.terminal.output import me, plain, progress, show_rows, tell
from idempotent.errors import StoreError
from idempotent.keys import consumer_named
from idempotent.logs import EventLog
from idempotent.views.keys import moment, span

log = EventLog(__name__)


def pause(
    url: UrlOption,
    consumer: Annotated[
        str | None,
        typer.Argument(
            metavar="SUBJECT:GROUP", show_default=False, help="The consumer; none: list what is paused."
        ),
    ] = None,
    note: Annotated[
        str,
        typer.Option(
            "--note", metavar="TEXT", show_default=False, help="Why: for the list, and for the workers' log."
        ),
    ] = "",
    table: TableOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a consumer's messages wait in the broker until `idempotent resume`; without a consumer, list what is paused.

    Every worker sees it within seconds, also one that starts later. Handlers that run finish; what has not begun goes
    back to the broker. No message is lost, runs twice or is counted as an attempt. The consumer is not asked for in the
    broker: a message that expires there, or a queue that is deleted without consumers, is gone.
    """
    if consumer is None and note:
        raise typer.BadParameter("--note is about one consumer: name it")
    name = None if consumer is None else _named(consumer)
    with _keys_at(url, table, prefix) as checker:
        if name is None:
            with progress("reading the keys", quiet=as_json):
                rows = [_row(each, as_json=as_json) for each in pauses_in(checker)]
            show_rows(rows, as_json=as_json, otherwise="No consumer is paused.")
            return
        pauses = Pauses(checker)
        known = next(iter(checker.admin().list(KeyFilter(name), limit=1)), None) is not None
        if not known:
            _refuse_offsets(url, table, name)
        found, is_new = pauses.pause(name, by=me(), note=note)
    text = f"[green]Done:[/green] {plain(name)} is paused."
    if not is_new:
        text = f"{plain(name)} was paused before, {plain(in_words(found))}."
    unknown = (
        f"[yellow]The store has no key of {plain(name)}:[/yellow] is the name right? "
        f"`idempotent keys stats {plain(checker.command_options)}` lists consumers."
    )
    values = _row(found, as_json=True)
    tell(text, "" if known else unknown, as_json=as_json, **values, changed=is_new, known=known)


def resume(
    url: UrlOption,
    consumer: Annotated[
        str, typer.Argument(metavar="SUBJECT:GROUP", show_default=False, help="The paused consumer.")
    ],
    table: TableOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a paused consumer go on. Its workers do so within seconds. Exit code 1: it was not paused."""
    name = _named(consumer)
    with _keys_at(url, table, prefix) as checker:
        found = Pauses(checker).resume(name)
    if found is None:
        paused = f"idempotent pause {plain(checker.command_options)}"
        text = f"[yellow]Not paused:[/yellow] {plain(name)}. What is: {paused}"
        tell(text, as_json=as_json, consumer=name, changed=False)
        raise typer.Exit(ExitCode.ATTENTION)
    log.warning(
        "pause_ended", extra={"consumer": name, "by": me(), "paused_by": found.by, "note": found.note}
    )
    text = f"[green]Done:[/green] {plain(name)} goes on. It was paused {plain(in_words(found))}."
    tell(text, as_json=as_json, **_row(found, as_json=True), changed=True)


def in_words(pause: Pause) -> str:
    """Since when, by whom and why, for people."""
    why = f": {pause.note}" if pause.note else ""
    lasts = span(pause.now_us - pause.since_us)
    return f"since {moment(pause.since_us)} ({lasts}) by {pause.by}{why}"


@contextmanager
def _keys_at(url: str, table: str | None, prefix: str | None) -> Iterator[AbstractIdempotentChecker]:
    """The checker of a store, of whose keys a dead one never expires.

    Raises:
        ConfigurationError: its consumers cannot be paused; or what `checker_at` raises.
    """
    demand_pausable(scheme_of(url).checker_class())
    with checker_at(url, table=table, prefix=prefix, dead_retention_s=None) as checker:
        yield checker


def _named(consumer: str) -> str:
    name = consumer_named(consumer)
    if name is None:
        raise typer.BadParameter(
            f"{consumer!r} is no consumer: write it as subject:group, as `idempotent keys stats` shows it"
        )
    return name


def _refuse_offsets(url: str, table: str | None, consumer: str) -> None:
    """Raise ConfigurationError if an OffsetChecker serves this consumer: its workers would not see the pause."""
    if scheme_of(url).kind is not StoreKind.SQL:
        return
    # Without its tables, or the right to read them, no OffsetChecker works here.
    with suppress(StoreError), offsets_at(url, table) as checker:
        if any(each.key.consumer == consumer for each in checker.stored()):
            demand_pausable(type(checker))


def _row(pause: Pause, *, as_json: bool) -> dict[str, Any]:
    """A pause as a row of a list."""
    lasts_us = pause.now_us - pause.since_us
    lasts = {"paused_s": round(lasts_us / 1_000_000)} if as_json else {"for": span(lasts_us)}
    since = moment(pause.since_us)
    return {"consumer": pause.consumer, "since": since, **lasts, "by": pause.by, "note": pause.note}
