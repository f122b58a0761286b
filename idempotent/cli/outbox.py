"""`idempotent outbox`: what waits in an outbox."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer

from idempotent.cli.exits import ExitCode, epilog
from idempotent.cli.options import JsonOption, OutboxUrlOption, TableOption, YesOption
from idempotent.cli.stores import outbox_at
from idempotent.cli.terminal.output import confirm, emit, me, note, say, show_record, show_rows, shown, tell
from idempotent.outbox.admin import Listed, OutboxAdmin
from idempotent.views.text import count

app = typer.Typer(
    help="Look at the messages that wait in an outbox, and help those that a broker refuses.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
MessageArgument = Annotated[
    str,
    typer.Argument(metavar="MESSAGE_ID", show_default=False, help="As `idempotent outbox list` shows it."),
]


@app.command(epilog=epilog("idempotent outbox stats --url sqlite:///app.db"))
def stats(url: OutboxUrlOption, table: TableOption = None, as_json: JsonOption = False) -> None:
    """Count what waits, and show how old it is and how many relays there are. Exit code 1: messages are held."""
    with _admin(url, table) as (admin, _):
        found = admin.stats()
    values = _rounded(asdict(found))
    if as_json:
        emit(**values)
    else:
        show_record(values)
        if not found.relays:
            say("[yellow]No relay is at work.[/yellow]")
        if found.idle_relays and found.leases_end_s is not None:
            say(
                "[yellow]Relays without a bucket wait for the leases of others[/yellow], unless these renew them."
            )
    if found.held:
        raise typer.Exit(ExitCode.ATTENTION)


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {name: round(each, 1) if isinstance(each, float) else each for name, each in values.items()}


@app.command("list", epilog=epilog("idempotent outbox list --held --url sqlite:///app.db"))
def show_list(
    url: OutboxUrlOption,
    table: TableOption = None,
    held: Annotated[
        bool, typer.Option("--held", help="Only what a broker has refused, and what waits for it.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="The most messages.")] = 100,
    as_json: JsonOption = False,
) -> None:
    """List what waits, oldest first."""
    with _admin(url, table) as (admin, retry_it):
        found = admin.listed(limit, held=held)
    rows = (asdict(each) if as_json else _row(each, retry_it) for each in found)
    show_rows(rows, as_json=as_json, otherwise="Nothing is held." if held else "Nothing waits.")


def _row(each: Listed, retry_it: str) -> dict[str, object]:
    return {
        "message_id": each.message_id,
        "subject": each.subject,
        "order_key": each.order_key,
        "destination": each.destination,
        "age_s": round(each.age_s),
        "state": _state(each, retry_it),
    }


def _state(each: Listed, retry_it: str) -> str:
    if each.attempts:
        return f"held, {each.attempts} refused: {each.reason or ''}"
    if each.waits_behind is not None:
        return f"held, waits behind {each.waits_behind}"
    if each.held:
        gone = "nothing says why"
        if each.retry_in_s is not None:
            gone = "the refused message that it waits behind is gone"
        return f"held, but {gone}: {retry_it}"
    return "" if each.due_in_s is None else f"due in {each.due_in_s:,.0f} s"


@app.command(epilog=epilog("idempotent outbox show 01a20da8-159c-7fdc-9d36-4b6e475deee8 --body"))
def show(
    message_id: MessageArgument,
    url: OutboxUrlOption,
    table: TableOption = None,
    body: Annotated[
        bool, typer.Option("--body", help="Write the body, and nothing else, to stdout.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a message."""
    with _admin(url, table) as (admin, retry_it):
        found = admin.listed(1, message_id=message_id)
        if not found:
            if as_json and not body:
                emit(message_id=message_id, subject=None)
            else:
                _note_unknown(message_id)
            raise typer.Exit(ExitCode.ATTENTION)
        if body:
            sys.stdout.buffer.write(admin.body(message_id) or b"")
            return
        headers = admin.headers(message_id)
    values = asdict(found[0])
    if as_json:
        emit(**values, headers=headers)
        return
    show_record(_rounded(values))
    for name, each in headers.items():
        say(f"header {shown(name)}: {shown(each if isinstance(each, str) else repr(each))}")
    say(f"state: {shown(_state(found[0], retry_it) or 'waits for a relay')}")


def _note_unknown(message_id: str) -> None:
    note(f"[yellow]No message {shown(message_id)} waits.[/yellow]")


@app.command(
    epilog=epilog("idempotent outbox retry", "idempotent outbox retry 01a20da8-159c-7fdc-9d36-4b6e475deee8")
)
def retry(
    url: OutboxUrlOption,
    message_id: Annotated[
        str | None,
        typer.Argument(metavar="MESSAGE_ID", show_default=False, help="Default: all that are held."),
    ] = None,
    table: TableOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a relay try what is held again at once, for example when the missing queue has been made.

    Exit code 1: no message has this id.
    """
    with _admin(url, table) as (admin, _):
        lanes = admin.retry(message_id)
        freed = admin.free()
        is_unknown = message_id is not None and not admin.listed(1, message_id=message_id) and not lanes
    text = f"{count(lanes, 'refused message')} will be tried again."
    if freed:
        text += f" {count(freed, 'message')} held without a reason will be published."
    tell(text, as_json=as_json, lanes=lanes, freed=freed)
    if message_id is not None and is_unknown:
        _note_unknown(message_id)
        raise typer.Exit(ExitCode.ATTENTION)


@app.command(epilog=epilog("idempotent outbox drop 01a20da8-159c-7fdc-9d36-4b6e475deee8 --yes"))
def drop(
    message_id: MessageArgument,
    url: OutboxUrlOption,
    table: TableOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a message, which is then never published. What waits behind it goes on.

    Of several messages with this id it deletes the first.
    """
    confirm(f"Delete the message {message_id!r} for ever?", yes=yes)
    with _admin(url, table) as (admin, _):
        waits = any(
            not each.held and each.due_in_s is None for each in admin.listed(1, message_id=message_id)
        )
        dropped = admin.drop(message_id, by=me())
    text = f"{count(dropped, 'message')} deleted."
    if dropped and waits:
        text += " It was not held: a relay that was just publishing it does publish it."
    tell(text, as_json=as_json, dropped=dropped)
    if not dropped:
        raise typer.Exit(ExitCode.ATTENTION)


@contextmanager
def _admin(url: str, table: str | None) -> Iterator[tuple[OutboxAdmin, str]]:
    """The tool for an outbox, and the command that tries what is held again."""
    with closing(outbox_at(url, table)) as outbox:
        yield OutboxAdmin(outbox), outbox.store.command("outbox", "retry")
