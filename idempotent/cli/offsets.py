"""`idempotent offsets`: how far the partitions of OffsetCheckers are processed."""

from __future__ import annotations

from typing import Annotated

import typer

from idempotent.cli.exits import ExitCode, epilog
from idempotent.cli.options import DryRunOption, JsonOption, TableOption, UrlOption, YesOption
from idempotent.cli.stores import offsets_at
from idempotent.cli.terminal.output import confirm, note, plain, show_rows, tell
from idempotent.keys import KeySpace
from idempotent.views.text import count

app = typer.Typer(
    help="Show and set how far the partitions of OffsetCheckers are processed.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_GREATEST = 2**63 - 1


@app.command(epilog=epilog("idempotent offsets show --url sqlite:///app.db"))
def show(url: UrlOption, table: TableOption = None, as_json: JsonOption = False) -> None:
    """Show the next offset of each partition: its first message that is not processed."""
    with offsets_at(url, table) as checker:
        found = checker.stored()
    rows = [
        {
            "consumer": each.key.consumer,
            "place": each.place,
            "next_offset": each.next_offset,
            "age_s": round(each.age_s, 1),
        }
        for each in found
    ]
    show_rows(rows, as_json=as_json, otherwise="No offsets yet.")


@app.command(
    "set",
    epilog=epilog("idempotent offsets set billing orders.shipped 0 4711 --dry-run --url sqlite:///app.db"),
)
def set_offset(
    group: Annotated[str, typer.Argument(metavar="GROUP", show_default=False, help="The consumer's group.")],
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False, help="The consumer's topic.")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0, show_default=False)],
    offset: Annotated[
        int,
        typer.Argument(
            metavar="OFFSET", min=0, max=_GREATEST, show_default=False, help="The next message to process."
        ),
    ],
    url: UrlOption,
    table: TableOption = None,
    topic_id: Annotated[
        str | None,
        typer.Option(
            "--topic-id",
            metavar="ID",
            show_default=False,
            help="Of which topic, if one with this name was deleted and created again.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let a partition continue at another offset. A running worker goes there within seconds.

    Set back, messages run again. Set forward, the messages between do not run. Kafka's own offset of the group follows
    the stored one while a worker runs. Exit code 1: no such partition is stored, or several topics had this name.
    """
    consumer = KeySpace(topic, group).name
    with offsets_at(url, table) as checker:
        found = [
            each
            for each in checker.stored()
            if each.key.hash == KeySpace(topic, group).key(each.place).hash
            and each.place.rpartition("/")[2] == str(partition)
            and topic_id in (None, each.place.rpartition("/")[0])
        ]
        if len(found) != 1:
            ids = ", ".join(each.place.rpartition("/")[0] for each in found)
            why = (
                f"several topics had this name; choose one with --topic-id: {ids}"
                if found
                else "it is not stored"
            )
            note(
                f"[yellow]Partition {partition} of {plain(consumer)}:[/yellow] {plain(why)}. "
                f"Type: idempotent offsets show {plain(checker.command_options)}"
            )
            raise typer.Exit(ExitCode.ATTENTION)
        (before,) = found
        moved = offset - before.next_offset
        effect = f"{count(abs(moved), 'offset')} {'will not run' if moved > 0 else 'will run again'}"
        what = f"partition {partition} of {plain(consumer)} from offset {before.next_offset} to {offset}: {effect}"
        if not dry_run:
            confirm(f"Set {what}?", yes=yes)
            checker.set(before.key, offset)
    tell(
        f"{'Would set' if dry_run else '[green]Done:[/green] set'} {what}.",
        as_json=as_json,
        consumer=consumer,
        place=before.place,
        before=before.next_offset,
        next_offset=offset,
        done=not dry_run,
    )
