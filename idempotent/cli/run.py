"""`idempotent run`: a worker for the consumers of a module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from idempotent.adapters import adapter_from_url
from idempotent.cli.exits import ExitCode
from idempotent.cli.modules import register_checkers, registry_at
from idempotent.cli.options import (
    BatchSizeOption,
    BrokerOption,
    CheckersOption,
    ConcurrencyOption,
    ConsumersOption,
    JsonOption,
    LogFormatOption,
    LogLevel,
    LogLevelOption,
    typed,
)
from idempotent.cli.terminal.logs import LogFormat
from idempotent.cli.terminal.output import Unit, note, plain
from idempotent.cli.terminal.tally import Tally, show_outcomes, watched
from idempotent.outcomes import Outcome
from idempotent.worker import Worker


def run(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE",
            show_default=False,
            help="The module of the consumers, those of the default registry. MODULE:REGISTRY: those of another one.",
        ),
    ],
    broker: BrokerOption,
    checker: CheckersOption = None,
    consumers: ConsumersOption = None,
    concurrency: ConcurrencyOption = 1,
    batch_size: BatchSizeOption = 1,
    drain_timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long running handlers have to finish.")
    ] = 20.0,
    fail_fast: Annotated[
        bool,
        typer.Option(
            "--fail-fast",
            help="End immediately if the broker or a store cannot be used, instead of waiting for it.",
        ),
    ] = False,
    health_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Rewritten every second while the worker runs: ready, connecting (no broker), or store (unusable).",
        ),
    ] = None,
    log_level: LogLevelOption = LogLevel.WARNING,
    log_format: LogFormatOption = LogFormat.TEXT,
    redact: Annotated[
        bool,
        typer.Option("--redact", help="Keep text and traceback of handlers' exceptions out of the log."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Process messages until SIGTERM or Ctrl-C, then finish running handlers and return the other messages.

    At the end of --drain-timeout, `async def` handlers are cancelled and their messages returned; others cannot be
    cancelled. A second Ctrl-C does not wait for handlers. It waits for a broker that is down, and logs that; a wrong
    password is an error. Exit code 1: plain handlers still ran at the end of --drain-timeout, or a file was processed
    to its end with rejected or dead messages.
    """
    registry = registry_at(target)
    # All of stderr is JSON then: no progress, no remark.
    quiet = as_json or log_format is LogFormat.JSON
    try:
        register_checkers(registry, checker or ())
        adapter = adapter_from_url(broker, **({"fail_fast": True} if fail_fast else {}))
        with watched(
            Unit.UNBOUNDED,
            "waiting for messages",
            log_level,
            quiet=quiet,
            log_format=log_format,
            typed=typed(context),
        ) as tally:
            worker = Worker(
                registry,
                adapter,
                concurrency,
                batch_size,
                drain_timeout,
                fail_fast=fail_fast,
                redact=redact,
                consumers=consumers,
                health_file=health_file,
                on_result=tally,
                services=() if quiet else [_announced(tally, consumers or registry.consumers, broker)],
            )
            summary = worker.run()
    finally:
        registry.close()
    more = {
        "requeued": (summary.requeued, "returned unprocessed"),
        "abandoned": (summary.abandoned, "handlers still ran; their messages are delivered again"),
        "stale": (summary.stale, "settled after the connection was lost; they are delivered again"),
        "unrecorded": (summary.unrecorded, "finished, but the store did not record it; they may run again"),
    }
    show_outcomes(tally, f"{target} on {broker}", more, as_json=as_json)
    if summary.abandoned:
        if not quiet:
            note("[yellow]Some handlers did not finish in time.[/yellow] See --drain-timeout.")
        raise typer.Exit(ExitCode.ATTENTION)
    if summary.unrecorded:
        if not quiet:
            note("[yellow]The store did not record everything that was processed.[/yellow] See the log.")
        raise typer.Exit(ExitCode.ATTENTION)
    if adapter.finished and (summary[Outcome.DEAD] or summary[Outcome.REJECTED]):
        raise typer.Exit(ExitCode.ATTENTION)


@contextmanager
def _announced(tally: Tally, consumers: Iterable[str], broker: str) -> Iterator[None]:
    """Say what is served, once the worker has checked all of it and has begun."""
    names = ", ".join(map(plain, sorted(consumers)))
    tally.bar.console.print(
        f"Serving [bold]{names}[/bold] from {plain(broker)}. Ctrl-C stops.", soft_wrap=True
    )
    yield
