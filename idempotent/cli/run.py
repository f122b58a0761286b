"""`idempotent run`: a worker for the consumers of a module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import typer

from idempotent.adapters import adapter_from_url
from idempotent.cli.exits import ExitCode
from idempotent.cli.modules import checkers_in, home_of, registry_at
from idempotent.cli.options import (
    BatchSizeOption,
    BrokerOption,
    CheckersOption,
    ConcurrencyOption,
    ConsumersOption,
    FailFastOption,
    HangAfterOption,
    HealthFileOption,
    JsonOption,
    LogFormatOption,
    LogLevel,
    LogLevelOption,
    MetricsAddressOption,
    MetricsPortOption,
    typed,
)
from idempotent.cli.terminal.logs import LogFormat, log_to_stderr
from idempotent.cli.terminal.output import emit, note, plain, show_table
from idempotent.cli.terminal.serving import metrics_served
from idempotent.outcomes import Outcome
from idempotent.registry import Registry
from idempotent.worker import Worker, WorkerSummary


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
    fail_fast: FailFastOption = False,
    health_file: HealthFileOption = None,
    metrics_port: MetricsPortOption = None,
    metrics_address: MetricsAddressOption = None,
    hang_after: HangAfterOption = None,
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
    # All of stderr is JSON then: no remark.
    quiet = as_json or log_format is LogFormat.JSON
    log_to_stderr(log_level.value, log_format, typed=typed(context))
    with checkers_in(registry, checker):
        adapter = adapter_from_url(broker, **({"fail_fast": True} if fail_fast else {}))
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
            services=() if quiet else [_announced(registry, consumers or registry.consumers, broker)],
        )
        with metrics_served(
            worker.health, metrics_port, metrics_address, hang_after_s=hang_after, quiet=quiet
        ):
            summary = worker.run()
    show_summary(summary, {}, as_json=as_json)
    left = {
        "Some handlers did not finish in time. See --drain-timeout.": summary.abandoned,
        "The store did not record everything that was processed. See the log.": summary.unrecorded,
    }
    for text in (text for text, number in left.items() if number and not quiet):
        note(f"[yellow]{text}[/yellow]")
    is_bad_file = adapter.finished and (summary[Outcome.DEAD] or summary[Outcome.REJECTED])
    if is_bad_file or any(left.values()):
        raise typer.Exit(ExitCode.ATTENTION)


def show_summary(summary: WorkerSummary, more: Mapping[str, int], *, as_json: bool, **values: object) -> None:
    """Say how many messages had which outcome, and `more` such numbers; `values` are for machines alone."""
    counts = {outcome.value: 0 for outcome in Outcome} | summary.as_extra() | dict(more)
    if as_json:
        emit(**values, **counts)
        return
    rows = {name: number for name, number in counts.items() if number} | {"settled": summary.settled}
    show_table({"outcome": name, "messages": number} for name, number in rows.items())


@contextmanager
def _announced(registry: Registry, names: Iterable[str], broker: str) -> Iterator[None]:
    """Say what is served, once the worker has checked all of it and has begun."""
    homes = ", ".join(sorted({home_of(registry.consumers[name]) for name in names}))
    served = f"[bold]{plain(', '.join(sorted(names)))}[/bold] from {plain(broker)}"
    note(f"Serving {served}, with the handlers of {plain(homes)}. Ctrl-C stops.")
    yield
