"""`idempotent replay`: process messages from a file with one consumer."""

from __future__ import annotations

import json
from itertools import count as count_from
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import typer

from idempotent.adapters import FileAdapter
from idempotent.cli.exits import ExitCode
from idempotent.cli.modules import checkers_in, consumer_at
from idempotent.cli.options import (
    BatchSizeOption,
    CheckersOption,
    ConcurrencyOption,
    JsonOption,
    LogLevel,
    LogLevelOption,
    TargetArgument,
    typed,
)
from idempotent.cli.run import show_summary
from idempotent.cli.terminal.logs import log_to_stderr
from idempotent.cli.terminal.output import note, plain, progress
from idempotent.views.text import count
from idempotent.worker import Worker

_SHOWN_REJECTS: Final = 3


def replay(
    context: typer.Context,
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", show_default=False, help="JSON Lines, also .gz; - is standard input."),
    ],
    target: TargetArgument,
    checker: CheckersOption = None,
    batch_size: BatchSizeOption = 1,
    concurrency: ConcurrencyOption = 1,
    id_field: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            show_default=False,
            help="Each line is a body; this field of it is the message id.",
        ),
    ] = None,
    rejects: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", show_default=False, help="The file for bad lines. Default: FILE.rejects.jsonl."
        ),
    ] = None,
    log_level: LogLevelOption = LogLevel.ERROR,
    as_json: JsonOption = False,
) -> None:
    """Process the messages in a file with one consumer.

    Run it as often as you like: each message takes effect once.

    A line is {"id": ..., "body": ..., "headers": {...}, "subject": ...}; the last two may be missing.
    Lines that could not be parsed, and dead letters, are copied to the reject file with their line number; the
    others are processed. A failed message is tried again after its backoff.

    Exit code 1: something was rejected or is dead.
    """
    registry, consumer = consumer_at(target)
    with checkers_in(registry, checker):
        adapter = FileAdapter(file, subject=consumer.subject, id_field=id_field, rejects=rejects)
        path = Path(adapter.rejects)
        before = path.stat().st_size if path.is_file() else 0

        with progress("starting", quiet=as_json) as said:
            log_to_stderr(log_level.value, typed=typed(context))
            settled = count_from(1)

            def on_result(*_: object) -> None:
                total = adapter.counts.bytes_total
                share = f", {adapter.counts.bytes_read / total:.0%} of the file" if total else ""
                said(f"{count(next(settled), 'message')} processed{share}")

            worker = Worker(
                registry, adapter, concurrency, batch_size, consumers={consumer.name}, on_result=on_result
            )
            summary = worker.run()
    counts = adapter.counts
    rejected = counts.malformed + counts.dead
    show_summary(
        summary,
        {"malformed": counts.malformed},
        as_json=as_json,
        file=file,
        consumer=consumer.name,
        finished=adapter.finished,
        rejects=adapter.rejects if rejected else None,
    )
    if rejected and not as_json:
        _show_rejects(adapter.rejects, before, rejected)
    if not adapter.finished:
        note(
            "[yellow]Stopped before the end.[/yellow] Run it again to continue: processed messages are skipped."
        )
        raise typer.Exit(ExitCode.INTERRUPTED)
    if rejected:
        raise typer.Exit(ExitCode.ATTENTION)


def _show_rejects(path: str, before: int, number: int) -> None:
    """Name the reject file, and the reasons of the first rejected lines of this run."""
    note(f"[yellow]{count(number, 'line')} rejected, see {plain(path)}[/yellow]")
    with Path(path).open("rb") as rejects:
        # Every run appends to it.
        rejects.seek(before)
        for line in islice(rejects, _SHOWN_REJECTS):
            record = json.loads(line)
            note(f"  {plain(record['file'])}:{record['line']}: {plain(record['reason'])}")
    if number > _SHOWN_REJECTS:
        note("  ...")
