"""`idempotent keys`: inspect the keys of a store, and decide about those that wait for a person."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from shlex import quote
from typing import Annotated, Final, NoReturn

import typer

from idempotent.admin import KeyFilter, KeyRecord, is_own, refuse_own
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.urls import StoreKind, scheme_of
from idempotent.claims import KeyStatus, Verdict
from idempotent.cli.exits import ExitCode, epilog
from idempotent.cli.keys import importing
from idempotent.cli.options import (
    ConsumerOption,
    JsonOption,
    KeyArgument,
    LapsedOption,
    LimitOption,
    PrefixOption,
    StatusOption,
    TableOption,
    UrlOption,
    YesOption,
)
from idempotent.cli.redrive import REDRIVE
from idempotent.cli.runs import counted, options_of
from idempotent.cli.stores import checker_at, parsed_key, tables_that_hide_rows
from idempotent.cli.terminal.output import (
    confirm,
    emit,
    most,
    note,
    plain,
    progress,
    say,
    show_record,
    show_rows,
    tell,
)
from idempotent.keys import consumer_named
from idempotent.views.keys import (
    Status,
    as_json,
    as_row,
    in_full,
    moment,
    span,
    stats_json,
    status_word,
)
from idempotent.views.text import count

_LETTER: Final = f"If a broker delivered its message, that is a dead letter. To return it: {REDRIVE}"
_NO_RESULT: Final = (
    "A later delivery is a duplicate. No result is stored with it: a copy of an HTTP request gets 409 "
    "answer-not-stored, and a repeated call a ResultNotStoredError."
)
_UNSEEN: Final = (
    "A transactional consumer keeps no visible key while its handler runs: the log of its worker names what runs "
    "for long (message_takes_long)."
)

_OptionalKey = Annotated[
    str | None,
    typer.Argument(metavar="KEY", show_default=False, help="One key; or choose many with the options below."),
]


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
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
    limit: LimitOption = None,
    table: TableOption = None,
    prefix: PrefixOption = None,
    json: JsonOption = False,
) -> None:
    """List keys, in the order of their hashes."""
    selection = _selection(consumer, status, lapsed=lapsed)
    wanted = most(limit, as_json=json)
    with _keys_at(url, table, prefix) as checker:
        # One more than wanted shows whether more exist.
        found = checker.admin().list(selection, limit=wanted and wanted + 1)
        rows = map(as_json if json else as_row, islice(found, wanted))
        shown = show_rows(rows, as_json=json, otherwise="No such key.")
        more = shown and next(found, None) is not None
    may_run = not status or Status.IN_PROGRESS in status
    if more:
        note(f"The first {shown:,}; --limit 0 for all, or choose: --consumer, --status, --lapsed.")
    elif not (shown or json) and may_run and scheme_of(url).kind is StoreKind.SQL:
        note(_UNSEEN)


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
    with _keys_at(url, table, prefix) as checker:
        found = checker.admin().get(parsed_key(key))
        if found is None:
            _not_stored(checker, key, as_json=json)
    if json:
        emit(**as_json(found))
        return
    show_record(in_full(found))
    if (found.lapsed or found.status is KeyStatus.DEAD) and not is_own(found.text):
        resolve_it = f"idempotent keys resolve {plain(quote(found.text))}"
        options = plain(checker.command_options)
        say(f"It happened:       {resolve_it} --done {options}")
        say(f"Let it run again:  {resolve_it} --retry {options}")
    if found.status is KeyStatus.DEAD and not is_own(found.text):
        say(_LETTER)


@app.command(epilog=epilog("idempotent keys stats --url redis://localhost", "idempotent keys stats --json"))
def stats(
    url: UrlOption, table: TableOption = None, prefix: PrefixOption = None, json: JsonOption = False
) -> None:
    """Count keys by consumer and state, and the runs of Spark beside them by state."""
    with _keys_at(url, table, prefix) as checker, progress("counting", quiet=json):
        rows = [*map(stats_json, checker.admin().stats())]
        runs = counted(checker, url, prefix)
    show_rows(rows, as_json=json, otherwise="No keys yet.")
    if runs:
        listed = f"idempotent runs list {plain(options_of(url, table, prefix))}"
        states = ", ".join(f"{number:,} {state}" for state, number in sorted(runs.items()) if number)
        tell(
            f"Beside them, runs of Spark, whose keys are not counted here: {states}. {listed}",
            as_json=json,
            runs=runs,
        )


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
    with _keys_at(url, table, prefix) as checker:
        if key is None:
            _change_many(checker, meant, done=False, yes=yes, as_json=json)
        else:
            _change_one(checker, key, done=False, yes=yes, as_json=json)


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
    with _keys_at(url, table, prefix) as checker:
        if key is None:
            _change_many(checker, meant, done=done, yes=yes, as_json=json)
        elif not (create and _create(checker, key, as_json=json)):
            _change_one(checker, key, done=done, yes=yes, as_json=json)


def _create(checker: AbstractIdempotentChecker, key: str, *, as_json: bool) -> bool:
    """Mark a key as done that is not stored; False: it is stored, so it is a key like others."""
    wanted = parsed_key(key)
    refuse_own(wanted.text)
    (verdict,) = importing.mark_done(checker, [wanted])
    if verdict is Verdict.ACQUIRED:
        text = f"[green]Done:[/green] {plain(key)} marked done (was: not stored, waiting, or its lease had ended)."
        tell(text, _NO_RESULT, as_json=as_json, key=key, was=None, changed=True)
        return True
    if verdict is Verdict.IN_PROGRESS and checker.admin().get(wanted) is None:
        why = "it is being processed, in a transaction that is still open. That has no lease. Wait until it ends"
        _left_alone(checker, key, f"{why}, and look again", was="in_progress", as_json=as_json)
    return False


def _selection(consumer: str | None, status: list[Status] | None, *, lapsed: bool) -> KeyFilter:
    """The filter of these options.

    Raises:
        typer.BadParameter: the consumer is not of the form subject:group.
    """
    named = None if consumer is None else consumer_named(consumer)
    if consumer is not None and named is None:
        raise typer.BadParameter(
            "--consumer takes subject:group, as `idempotent keys stats` shows it. The keys of a consumer of Spark "
            f"belong to runs: idempotent runs list --consumer {quote(consumer)}"
        )
    statuses = frozenset[KeyStatus]().union(*(each.stored for each in status or ()))
    return KeyFilter(named, statuses, lapsed)


def _not_stored(checker: AbstractIdempotentChecker, key: str, *, as_json: bool) -> NoReturn:
    """Say that the key is not stored, and end the command."""
    done = f"idempotent keys resolve {plain(quote(key))} --done --create {plain(checker.command_options)}"
    text = (
        f"[yellow]Not stored:[/yellow] {plain(key)}. Its next delivery runs, if no open transaction has the key. "
        f"A dead letter stays one until it is sent back: {REDRIVE}. If it was processed elsewhere: {done}"
    )
    tell(text, as_json=as_json, key=key, status=None)
    raise typer.Exit(ExitCode.ATTENTION)


def _left_alone(
    checker: AbstractIdempotentChecker, key: str, why: str, *, was: str, as_json: bool
) -> NoReturn:
    """Say that the key was not changed, and end the command."""
    again = f"idempotent keys show {plain(quote(key))} {plain(checker.command_options)}"
    text = f"[yellow]Left alone:[/yellow] {plain(key)}: {why}: {again}"
    tell(text, as_json=as_json, key=key, was=was, changed=False)
    raise typer.Exit(ExitCode.ATTENTION)


def _meant(key: str | None, consumer: str | None, status: list[Status] | None, *, lapsed: bool) -> KeyFilter:
    if key is not None and (consumer or status or lapsed):
        raise typer.BadParameter(
            "give one KEY, or choose many with --consumer, --status and --lapsed; not both"
        )
    if key is None and not (status or lapsed):
        raise typer.BadParameter("give a KEY, or choose many: --status dead, or --lapsed")
    meant = _selection(consumer, status, lapsed=lapsed)
    refuse_own(meant.head or "")
    return meant


def _change_one(
    checker: AbstractIdempotentChecker, key: str, *, done: bool, yes: bool, as_json: bool
) -> None:
    admin = checker.admin()
    found = admin.get(parsed_key(key))
    if found is None:
        _not_stored(checker, key, as_json=as_json)
    refuse_own(found.text)
    was_done, was = found.status is KeyStatus.DONE, status_word(found.status)
    if was_done and not done:
        confirm("It is done: its effect happened, and will happen again. Reopen it?", yes=yes)
    if not ((was_done and done) or (admin.mark_done if done else admin.reopen)(found)):
        _left_alone(checker, found.text, _why_not(found), was=was, as_json=as_json)
    text = f"[green]Done:[/green] {plain(found.text)} {'marked done' if done else 'reopened'} (was: {was})."
    remark = ""
    if not done and found.status is KeyStatus.DEAD:
        remark = _LETTER
    elif done and not was_done:
        remark = _NO_RESULT
    tell(text, remark, as_json=as_json, key=found.text, was=was, changed=True)


def _change_many(
    checker: AbstractIdempotentChecker, meant: KeyFilter, *, done: bool, yes: bool, as_json: bool
) -> None:
    admin = checker.admin()
    counted = admin.stats()
    total = sum(
        stats.lapsed if meant.lapsed else stats.count
        for stats in counted
        if meant.consumer in (None, stats.consumer) and (not meant.statuses or stats.status in meant.statuses)
    )
    if not total:
        unknown = ""
        if meant.consumer is not None and all(stats.consumer != meant.consumer for stats in counted):
            unknown = (
                f"There is no key of {plain(meant.consumer)} at all; "
                f"`idempotent keys stats {plain(checker.command_options)}` lists consumers."
            )
        tell("No such key.", unknown, as_json=as_json, changed=0, left_alone=0)
        raise typer.Exit(ExitCode.ATTENTION if unknown else ExitCode.OK)
    change, verb, past = (
        (admin.mark_done, "Mark as done", "marked done") if done else (admin.reopen, "Reopen", "reopened")
    )
    what_then = "They will never run again." if done else "Their next delivery runs the handler again."
    confirm(f"{verb} {count(total, 'key')}? {what_then}", yes=yes)
    changed = left = 0
    with progress(verb, quiet=as_json) as said:
        for each in admin.list(meant):
            if change(each):
                changed += 1
            else:
                left += 1
            said(f"{changed + left:,} of {count(total, 'key')}")
    text = f"[green]Done:[/green] {count(changed, 'key')} {past}."
    remark = ""
    if changed and done:
        remark = _NO_RESULT
    elif changed and KeyStatus.DEAD in (meant.statuses or KeyStatus):
        remark = _LETTER
    alone = f"[yellow]Left alone:[/yellow] {left:,}, being processed or changed meanwhile." if left else ""
    tell(text, remark, alone, as_json=as_json, changed=changed, left_alone=left)
    if left:
        raise typer.Exit(ExitCode.ATTENTION)


def _why_not(found: KeyRecord) -> str:
    if found.status.in_progress and found.lease_until_us is not None and not (found.lapsed or found.held):
        rest = span(found.lease_until_us - found.now_us)
        return (
            f"it is being processed; its lease ends in {rest}, at {moment(found.lease_until_us)}, unless its process "
            "renews it. Wait, and look again"
        )
    return "it has changed meanwhile; look again"


@contextmanager
def _keys_at(url: str, table: str | None, prefix: str | None) -> Iterator[AbstractIdempotentChecker]:
    """The checker of a store, after a remark about keys that its user does not see."""
    with checker_at(url, table=table, prefix=prefix) as checker:
        for hiding in tables_that_hide_rows(checker):
            note(
                f"Row level security hides rows of {plain(hiding)} from this user: "
                f"`idempotent doctor {plain(checker.command_options)}` says more."
            )
        yield checker


app.command(
    "import",
    epilog=epilog(
        "idempotent keys import processed.jsonl --consumer orders.paid:billing --url sqlite:///app.db",
        "idempotent keys list --status done --json --url redis://localhost | idempotent keys import -",
    ),
)(importing.import_keys)
