"""`idempotent keys`: inspect the keys of a store, and decide about those that wait for a person."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Final

import typer

from idempotent.admin import KeyFilter
from idempotent.claims import KeyStatus
from idempotent.cli.exits import epilog
from idempotent.cli.keys import changes as keys_changes
from idempotent.cli.keys import importing
from idempotent.cli.keys.view import (
    add_record,
    as_json,
    coloured,
    record_table,
    records_table,
    span,
    stats_json,
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
)
from idempotent.cli.redrive import REDRIVE
from idempotent.cli.stores import checker_at, parsed_key, store_words
from idempotent.cli.terminal.output import Unit, console, emit, note, plain, progress, say
from idempotent.cli.terminal.output import table as new_table

_SCREENFUL: Final = 100
# Rich measures a whole table before it prints it, so a long list is printed as several.
_ROWS_AT_ONCE: Final = 1000

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
    selection = keys_changes.selection(consumer, status, lapsed=lapsed)
    wanted = limit if limit is not None else (0 if json else _SCREENFUL)
    with checker_at(url, table=table, prefix=prefix) as checker:
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
    with checker_at(url, table=table, prefix=prefix) as checker:
        record = checker.admin().get(wanted)
    if record is None:
        keys_changes.not_stored(key, as_json=json)
    if json:
        emit(**as_json(record))
        return
    console().print(record_table(record))
    if record.lapsed or record.status is KeyStatus.DEAD:
        quoted = plain(f"'{record.text}'")
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
    with checker_at(url, table=table, prefix=prefix) as checker, progress(Unit.UNBOUNDED, quiet=json) as bar:
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


keys_changes.register(app)
importing.register(app)
