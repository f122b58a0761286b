"""`idempotent keys`: inspect the keys of a store, and decide about those that wait for a person."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from shlex import quote
from typing import Annotated, Final, NoReturn

import typer

from idempotent.admin import KeyAdmin, KeyFilter, KeyRecord, KeyStats
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.urls import StoreKind, scheme_of
from idempotent.claims import KeyStatus, Verdict
from idempotent.cli.exits import ExitCode, epilog
from idempotent.cli.keys import importing
from idempotent.cli.keys.view import (
    Status,
    add_record,
    as_json,
    coloured,
    moment,
    record_table,
    records_table,
    span,
    stats_json,
    status_word,
)
from idempotent.cli.options import (
    ConsumerOption,
    JsonOption,
    KeyArgument,
    LapsedOption,
    PrefixOption,
    StatusOption,
    TableOption,
    UrlOption,
    YesOption,
)
from idempotent.cli.redrive import REDRIVE
from idempotent.cli.stores import checker_at, parsed_key, store_words, tables_that_hide_rows
from idempotent.cli.terminal.output import (
    Unit,
    confirm,
    console,
    count,
    emit,
    note,
    plain,
    progress,
    say,
    tell,
)
from idempotent.cli.terminal.output import table as new_table
from idempotent.keys import consumer_named

_SCREENFUL: Final = 100
# Rich measures a whole table before it prints it, so a long list is printed as several.
_ROWS_AT_ONCE: Final = 1000

_OptionalKey = Annotated[
    str | None,
    typer.Argument(metavar="KEY", show_default=False, help="One key; or choose many with the options below."),
]


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of a key, and the words that report it."""

    verb: str
    past: str
    warning: str
    act: Callable[[KeyAdmin, KeyRecord], bool]


_REOPEN = _Change(
    "Reopen",
    "reopened",
    "Their next delivery runs the handler again.",
    lambda admin, record: admin.reopen(record),
)
_DONE = _Change(
    "Mark as done", "marked done", "They will never run again.", lambda admin, record: admin.mark_done(record)
)

_STILL_DEAD_LETTER: Final = (
    f"[yellow]Still to do:[/yellow] a dead key's message is a dead letter of the broker. Return it: {REDRIVE}"
)

_UNSEEN: Final = (
    "[dim]A transactional consumer keeps no visible key while its handler runs: the log of its worker names what runs "
    "for long (message_takes_long).[/dim]"
)

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Inspect keys, and decide about those that wait for a person.",
)


@app.command(
    "list",
    epilog=epilog(
        "idempotent keys list --url sqlite:///app.db --status dead",
        "idempotent keys list --consumer orders.paid:billing --lapsed",
        "idempotent keys list --json | jq -r .key",
    ),
)
def list_keys(
    url: UrlOption,
    consumer: ConsumerOption = None,
    status: StatusOption = None,
    lapsed: LapsedOption = False,
    limit: Annotated[
        int | None, typer.Option(min=0, help="At most this many; 0 for all. Default: 100, with --json all.")
    ] = None,
    table: TableOption = None,
    prefix: PrefixOption = None,
    json: JsonOption = False,
) -> None:
    """List keys, in the order of their hashes."""
    selection = _selection(consumer, status, lapsed=lapsed)
    wanted = limit if limit is not None else (0 if json else _SCREENFUL)
    with _keys_at(url, table=table, prefix=prefix) as checker:
        # One more than wanted shows whether more exist.
        found = checker.admin().list(selection, limit=wanted + 1 if wanted else None)
        if json:
            for record in islice(found, wanted or None):
                emit(**as_json(record))
            return
        shown = 0
        more = False
        while rows := list(islice(found, _ROWS_AT_ONCE)):
            more = bool(wanted) and shown + len(rows) > wanted
            rows = rows[: wanted - shown] if more else rows
            listed = records_table()
            for record in rows:
                add_record(listed, record)
            console().print(listed)
            shown += len(rows)
    if not shown:
        say("No such key.")
        if scheme_of(url).kind is StoreKind.SQL and (not status or Status.IN_PROGRESS in status):
            note(_UNSEEN)
    elif more:
        note(f"[dim]The first {shown:,}; --limit 0 for all, or choose: --consumer, --status, --lapsed.[/dim]")


@app.command(
    epilog=epilog(
        "idempotent keys show orders.paid:billing:4711",
        "idempotent keys show 3f1d0c5e7a9b2d4f60718293a4b5c6d7e8f90a1b --json",
    )
)
def show(
    key: KeyArgument,
    url: UrlOption,
    table: TableOption = None,
    prefix: PrefixOption = None,
    json: JsonOption = False,
) -> None:
    """Show everything about one key. Exit code 1: it is not stored, so its next delivery runs."""
    wanted = parsed_key(key)
    with _keys_at(url, table=table, prefix=prefix) as checker:
        record = checker.admin().get(wanted)
    if record is None:
        _not_stored(key, store_words(url, table=table, prefix=prefix), as_json=json)
    if json:
        emit(**as_json(record))
        return
    console().print(record_table(record))
    if record.lapsed or record.status is KeyStatus.DEAD:
        quoted = plain(quote(record.text))
        named = plain(store_words(url, table=table, prefix=prefix))
        say(f"[dim]It happened:        [/dim]idempotent keys resolve {quoted} --done{named}")
        say(f"[dim]Let it run again:   [/dim]idempotent keys resolve {quoted} --retry{named}")
    if record.status is KeyStatus.DEAD:
        say(f"[dim]and then return its message, a dead letter of the broker: [/dim]{REDRIVE}")


@app.command(epilog=epilog("idempotent keys stats --url redis://localhost", "idempotent keys stats --json"))
def stats(
    url: UrlOption, table: TableOption = None, prefix: PrefixOption = None, json: JsonOption = False
) -> None:
    """Count keys by consumer and state."""
    with _keys_at(url, table=table, prefix=prefix) as checker, progress(Unit.UNBOUNDED, quiet=json) as bar:
        bar.add_task("counting", total=None)
        admin = checker.admin()
        counted = admin.stats()
        # Ages are counted from the store's clock, which comes with every record.
        now_us = max((record.now_us for record in admin.list(KeyFilter(), limit=1)), default=0)
    if json:
        for line in counted:
            emit(**stats_json(line))
        return
    if not counted:
        say("No keys yet.")
        return
    rows = new_table("Consumer", "Status", "Keys", "Lapsed", "Oldest change", right=("Keys", "Lapsed"))
    before = None
    for line in counted:
        rows.add_row(
            "" if line.consumer == before else plain(line.consumer),
            coloured(line.status),
            f"{line.count:,}",
            f"[red]{line.lapsed:,}[/red]" if line.lapsed else "",
            f"{span(max(now_us - line.oldest_update_us, 0))} ago",
        )
        before = line.consumer
    rows.add_section()
    rows.add_row("", "", f"[bold]{sum(line.count for line in counted):,}[/bold]")
    console().print(rows)


@app.command(
    epilog=epilog(
        "idempotent keys reopen orders.paid:billing:4711",
        "idempotent keys reopen --consumer orders.paid:billing --status dead --yes",
        "idempotent keys reopen --lapsed",
    )
)
def reopen(
    url: UrlOption,
    key: _OptionalKey = None,
    consumer: ConsumerOption = None,
    status: StatusOption = None,
    lapsed: LapsedOption = False,
    yes: YesOption = False,
    table: TableOption = None,
    prefix: PrefixOption = None,
    json: JsonOption = False,
) -> None:
    """Delete keys and their attempts, so that their next delivery runs. Never one with a live lease.

    Exit code 1: a key is not stored, the consumer has none, or a key was left alone because it is being processed or
    has changed meanwhile.
    """
    meant = _meant(key, consumer, status, lapsed=lapsed)
    with _keys_at(url, table=table, prefix=prefix) as checker:
        named = store_words(url, table=table, prefix=prefix)
        _change(checker.admin(), _REOPEN, key, meant, named, yes=yes, as_json=json)


@app.command(
    epilog=epilog(
        "idempotent keys resolve orders.paid:billing:4711 --done",
        "idempotent keys resolve orders.paid:billing:4712 --done --create",
        "idempotent keys resolve --consumer orders.paid:billing --status dead --retry --yes",
    )
)
def resolve(
    url: UrlOption,
    key: _OptionalKey = None,
    done: Annotated[
        bool | None,
        typer.Option(
            "--done/--retry", show_default=False, help="Its effect happened / did not: let it run again."
        ),
    ] = None,
    create: Annotated[
        bool,
        typer.Option(
            "--create", help="With KEY and --done: also a key that is not stored, processed elsewhere."
        ),
    ] = False,
    consumer: ConsumerOption = None,
    status: StatusOption = None,
    lapsed: LapsedOption = False,
    yes: YesOption = False,
    table: TableOption = None,
    prefix: PrefixOption = None,
    json: JsonOption = False,
) -> None:
    """Say what became of a key that is dead, or whose process died: its effect happened, or it did not.

    --done keeps a dead key for 14 days from now. Where its consumer's checker has another retention_s, put that into
    the URL: --url 'sqlite:///app.db?retention_s=2592000'. The store does not know it.

    Exit code 1: a key is not stored, the consumer has none, or a key was left alone because it is being processed or
    has changed meanwhile.
    """
    if done is None:
        raise typer.BadParameter("look whether the effect happened, then say --done or --retry")
    if create and (key is None or not done):
        raise typer.BadParameter(
            "--create goes with one KEY and --done; for many keys: idempotent keys import"
        )
    meant = _meant(key, consumer, status, lapsed=lapsed)
    with _keys_at(url, table=table, prefix=prefix) as checker:
        admin = checker.admin()
        named = store_words(url, table=table, prefix=prefix)
        if create and key is not None and _create(checker, key, named, as_json=json):
            return
        _change(admin, _DONE if done else _REOPEN, key, meant, named, yes=yes, as_json=json)


def _create(checker: AbstractIdempotentChecker, key: str, named: str, *, as_json: bool) -> bool:
    """Mark a key as done that is not stored; False: it is stored, so it is a key like others."""
    wanted = parsed_key(key)
    (verdict,) = importing.mark_done(checker, [wanted])
    if verdict is Verdict.ACQUIRED:
        text = f"[green]Done:[/green] {plain(key)} marked done (was: not stored, waiting, or its lease had ended)."
        tell(text, as_json=as_json, key=key, was=None, changed=True)
        return True
    if verdict is Verdict.IN_PROGRESS and checker.admin().get(wanted) is None:
        text = (
            f"[yellow]Left alone:[/yellow] {plain(key)}: it is being processed, in a transaction that is still open. "
            "That has no lease. Wait until it ends, and look again: "
            f"idempotent keys show {plain(quote(key) + named)}"
        )
        tell(text, as_json=as_json, key=key, was="in_progress", changed=False)
        raise typer.Exit(ExitCode.ATTENTION)
    return False


def _selection(consumer: str | None, status: list[Status] | None, *, lapsed: bool) -> KeyFilter:
    """The filter of these options.

    Raises:
        typer.BadParameter: the consumer is not of the form subject:group.
    """
    if consumer is not None and (consumer := consumer_named(consumer)) is None:
        raise typer.BadParameter("--consumer takes subject:group, as `idempotent keys stats` shows it")
    statuses = frozenset[KeyStatus]().union(*(each.stored for each in status or ()))
    return KeyFilter(consumer, statuses, lapsed)


def _not_stored(key: str, named: str, *, as_json: bool) -> NoReturn:
    """Say that the key is not stored, and end the command."""
    text = (
        f"[yellow]Not stored:[/yellow] {plain(key)}. Its next delivery runs, if no open transaction has the key. "
        f"A dead letter stays one until it is sent back: {REDRIVE}. "
        f"If it was processed elsewhere: idempotent keys resolve {plain(quote(key))} --done --create{plain(named)}"
    )
    tell(text, as_json=as_json, key=key, status=None)
    raise typer.Exit(ExitCode.ATTENTION)


def _meant(key: str | None, consumer: str | None, status: list[Status] | None, *, lapsed: bool) -> KeyFilter:
    if key is not None and (consumer or status or lapsed):
        raise typer.BadParameter(
            "give one KEY, or choose many with --consumer, --status and --lapsed; not both"
        )
    if key is None and not (status or lapsed):
        raise typer.BadParameter("give a KEY, or choose many: --status dead, or --lapsed")
    return _selection(consumer, status, lapsed=lapsed)


def _change(
    admin: KeyAdmin,
    change: _Change,
    key: str | None,
    meant: KeyFilter,
    named: str,
    *,
    yes: bool,
    as_json: bool,
) -> None:
    """Change one key, or many. `named`: the options that name the store to another command."""
    if key is None:
        _change_many(admin, change, meant, named, yes=yes, as_json=as_json)
    else:
        _change_one(admin, change, key, named, yes=yes, as_json=as_json)


def _change_one(admin: KeyAdmin, change: _Change, key: str, named: str, *, yes: bool, as_json: bool) -> None:
    record = admin.get(parsed_key(key))
    if record is None:
        _not_stored(key, named, as_json=as_json)
    done = record.status is KeyStatus.DONE
    if done and change is _REOPEN:
        confirm("It is done: its effect happened, and will happen again. Reopen it?", yes=yes)
    changed = (done and change is _DONE) or change.act(admin, record)
    was = status_word(record.status)
    text = f"[yellow]Left alone:[/yellow] {plain(record.text)}: {_why_not(record, named)}"
    if changed:
        text = f"[green]Done:[/green] {plain(record.text)} {change.past} (was: {was})."
    tell(text, as_json=as_json, key=record.text, was=was, changed=changed)
    if changed and change is _REOPEN and record.status is KeyStatus.DEAD and not as_json:
        note(_STILL_DEAD_LETTER)
    if not changed:
        raise typer.Exit(ExitCode.ATTENTION)


def _change_many(
    admin: KeyAdmin, change: _Change, meant: KeyFilter, named: str, *, yes: bool, as_json: bool
) -> None:
    counted = admin.stats()
    total = _count(counted, meant)
    if not total:
        tell("No such key.", as_json=as_json, changed=0, left_alone=0)
        if meant.consumer is not None and all(stats.consumer != meant.consumer for stats in counted):
            if not as_json:
                note(
                    f"There is no key of {plain(meant.consumer)} at all; "
                    f"`idempotent keys stats{plain(named)}` lists consumers."
                )
            raise typer.Exit(ExitCode.ATTENTION)
        return
    confirm(f"{change.verb} {count(total, 'key')}? {change.warning}", yes=yes)
    changed = left = 0
    with progress(Unit.THINGS, quiet=as_json) as bar:
        task = bar.add_task(f"{change.verb.lower()}", total=total)
        for record in admin.list(meant):
            if change.act(admin, record):
                changed += 1
            else:
                left += 1
            bar.advance(task)
    text = f"[green]Done:[/green] {count(changed, 'key')} {change.past}."
    tell(text, as_json=as_json, changed=changed, left_alone=left)
    if changed and change is _REOPEN and KeyStatus.DEAD in (meant.statuses or KeyStatus) and not as_json:
        note(_STILL_DEAD_LETTER)
    if left:
        if not as_json:
            note(f"[yellow]Left alone:[/yellow] {left:,}, being processed or changed meanwhile.")
        raise typer.Exit(ExitCode.ATTENTION)


def _count(counted: Sequence[KeyStats], meant: KeyFilter) -> int:
    """How many keys match a filter, by the store's figures."""
    return sum(
        stats.lapsed if meant.lapsed else stats.count
        for stats in counted
        if (meant.consumer is None or stats.consumer == meant.consumer)
        and (not meant.statuses or stats.status in meant.statuses)
    )


def _why_not(record: KeyRecord, named: str) -> str:
    if record.status.in_progress and record.lease_until_us is not None and not (record.lapsed or record.held):
        rest = span(record.lease_until_us - record.now_us)
        return (
            f"it is being processed; its lease ends in {rest}, at {moment(record.lease_until_us)}, unless its process "
            f"renews it. Wait, and look again: idempotent keys show {plain(quote(record.text) + named)}"
        )
    return "it has changed meanwhile; look again."


@contextmanager
def _keys_at(url: str, *, table: str | None, prefix: str | None) -> Iterator[AbstractIdempotentChecker]:
    """The checker of a store, after a remark about keys that its user does not see."""
    with checker_at(url, table=table, prefix=prefix) as checker:
        for hiding in tables_that_hide_rows(checker):
            note(
                f"Row level security hides rows of {plain(hiding)} from this user: "
                f"`idempotent doctor{plain(store_words(url, table=table, prefix=prefix))}` says more."
            )
        yield checker


importing.register(app)
