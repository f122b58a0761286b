"""`idempotent pause` and `idempotent resume`: let the messages of a consumer wait in the broker, and go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Final, NoReturn

import typer

from idempotent.admin import KeyFilter, Pause
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.pauses import Pauses, demand_pausable, pauses_in
from idempotent.checkers.urls import StoreKind, scheme_of
from idempotent.cli.exits import ExitCode
from idempotent.cli.options import JsonOption, PrefixOption, TableOption, UrlOption
from idempotent.cli.stores import checker_at, offsets_at
from idempotent.cli.terminal.output import me, plain, progress, show_rows, tell
from idempotent.cli.terminal.output import note as remark
from idempotent.errors import StoreError
from idempotent.keys import consumer_named
from idempotent.logs import EventLog
from idempotent.views.keys import moment, span

log = EventLog(__name__)

_FORM: Final = "a consumer is subject:group, as `idempotent keys stats` shows it"


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
                rows = [*map(_as_json if as_json else _as_row, pauses_in(checker))]
            show_rows(rows, as_json=as_json, otherwise="No consumer is paused.")
            return
        pauses = Pauses(checker)
        known = _is_known(checker, name)
        if not known:
            _refuse_offsets(url, table, name)
        found, is_new = pauses.pause(name, by=me(), note=note)
    _tell(found, "[green]Done:[/green] {0} is paused." if is_new else _ALREADY, as_json, is_new, known)
    if not (known or as_json):
        remark(
            f"[yellow]The store has no key of {plain(name)}:[/yellow] is the name right? "
            f"`idempotent keys stats {plain(checker.command_options)}` lists consumers."
        )


_ALREADY: Final = "{0} was paused before, {1}."


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
        _not_paused(checker, name, as_json=as_json)
    log.warning(
        "pause_ended", extra={"consumer": name, "by": me(), "paused_by": found.by, "note": found.note}
    )
    _tell(found, "[green]Done:[/green] {0} goes on. It was paused {1}.", as_json, True)


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
        raise typer.BadParameter(f"{consumer!r} is none: {_FORM}")
    return name


def _is_known(checker: AbstractIdempotentChecker, consumer: str) -> bool:
    return next(iter(checker.admin().list(KeyFilter(consumer), limit=1)), None) is not None


def _refuse_offsets(url: str, table: str | None, consumer: str) -> None:
    """Raise ConfigurationError if an OffsetChecker serves this consumer: its workers would not see the pause."""
    if scheme_of(url).kind is not StoreKind.SQL:
        return
    # Without its tables, or the right to read them, no OffsetChecker works here.
    with suppress(StoreError), offsets_at(url, table) as checker:
        if any(each.key.consumer == consumer for each in checker.stored()):
            demand_pausable(type(checker))


def _tell(pause: Pause, text: str, as_json: bool, changed: bool, known: bool | None = None) -> None:
    more = {} if known is None else {"known": known}
    said = text.format(plain(pause.consumer), plain(in_words(pause)))
    tell(said, as_json=as_json, **_as_json(pause), changed=changed, **more)


def _not_paused(checker: AbstractIdempotentChecker, consumer: str, *, as_json: bool) -> NoReturn:
    paused = f"idempotent pause {plain(checker.command_options)}"
    text = f"[yellow]Not paused:[/yellow] {plain(consumer)}. What is: {paused}"
    tell(text, as_json=as_json, consumer=consumer, changed=False)
    raise typer.Exit(ExitCode.ATTENTION)


def _as_json(pause: Pause) -> dict[str, Any]:
    return {
        "consumer": pause.consumer,
        "since": moment(pause.since_us),
        "paused_s": round((pause.now_us - pause.since_us) / 1_000_000),
        "by": pause.by,
        "note": pause.note,
    }


def _as_row(pause: Pause) -> dict[str, Any]:
    return {
        "consumer": pause.consumer,
        "since": moment(pause.since_us),
        "for": span(pause.now_us - pause.since_us),
        "by": pause.by,
        "note": pause.note,
    }
