"""`idempotent relay`: publishes what waits in an outbox."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

import typer

from idempotent.adapters import adapter_from_url
from idempotent.adapters.base import Adapter
from idempotent.cli.configuration import URL_VARIABLE, url_in
from idempotent.cli.exits import ExitCode
from idempotent.cli.options import (
    FailFastOption,
    HealthFileOption,
    LogFormatOption,
    LogLevel,
    LogLevelOption,
    MetricsAddressOption,
    MetricsPortOption,
    TableOption,
)
from idempotent.cli.stores import outbox_at
from idempotent.cli.terminal.logs import LogFormat, log_to_stderr
from idempotent.cli.terminal.output import note, plain
from idempotent.cli.terminal.serving import metrics_served
from idempotent.errors import ConfigurationError, StoreUnavailableError
from idempotent.outbox import Outbox, Relay
from idempotent.outbox.store import OutboxStore
from idempotent.views.text import count
from idempotent.worker.process import on_stop_signal

_LOOK_S: Final = 0.1
# A URL has a colon before its first equals sign.
_NAMED: Final = re.compile(r"([^:=]+)=(.+)", re.DOTALL)


def relay(
    outbox: Annotated[
        str,
        typer.Option(
            "--outbox",
            "--url",
            envvar=URL_VARIABLE,
            metavar="URL",
            show_default=False,
            callback=url_in,
            help="The database of the outbox. Or env:VARIABLE.",
        ),
    ],
    broker: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME=]URL",
            envvar="IDEMPOTENT_BROKER",
            show_default=False,
            help="Where to publish; the adapter's options follow the ?. Or env:VARIABLE. May be repeated: NAME=URL is "
            "for what was sent with to=NAME.",
        ),
    ],
    table: TableOption = None,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Messages to publish together.")] = 500,
    lease: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="After it, another relay replaces one that died.")
    ] = 15.0,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when nothing waits that could be published now.")
    ] = False,
    fail_fast: FailFastOption = False,
    health_file: HealthFileOption = None,
    metrics_port: MetricsPortOption = None,
    metrics_address: MetricsAddressOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Publish what committed transactions leave in an outbox, until SIGTERM or Ctrl-C.

    Any number of relays share the work. A message is published at least once, always under the same id: give its
    consumer a checker.

    It waits for a broker or a database that is down, and logs that; a wrong password of a broker is an error. A second
    Ctrl-C does not wait for the broker. Exit code 1: with --until-empty, messages are held, or wait for a broker of
    another name.
    """
    log_to_stderr(log_level.value, log_format)
    opened = outbox_at(outbox, table)
    try:
        with suppress(StoreUnavailableError):  # the relay waits for it, and says so
            opened.store.stats()
        publishers = _publishers(broker, fail_fast=fail_fast)
        running = Relay(
            opened,
            publishers,
            batch_size=batch_size,
            lease_s=lease,
            fail_fast=fail_fast,
            health_file=health_file,
        )
        quiet = log_format is LogFormat.JSON
        with metrics_served(running.health, metrics_port, metrics_address, quiet=quiet):
            _run(running, opened, [*publishers], until_empty=until_empty)
        if until_empty:
            _report(opened.store)
    finally:
        opened.close()


def _run(running: Relay, opened: Outbox, names: Sequence[str], *, until_empty: bool) -> None:
    """Publish until a signal comes; a second one does not wait."""
    stopped: list[bool] = []

    def stop() -> None:
        # A signal handler may take no lock, so it does not stop the relay itself.
        if stopped:
            raise KeyboardInterrupt
        stopped.append(True)

    with on_stop_signal(stop), running:
        while not (stopped or (until_empty and not opened.store.has_waiting(names))):
            time.sleep(_LOOK_S)


def _report(store: OutboxStore) -> None:
    """Say what is left, which is held, or for a broker that was not named."""
    stats = store.stats()
    if stats.held:
        list_it = plain(store.command("outbox", "list", "--held"))
        note(f"[yellow]{count(stats.held, 'message')} held.[/yellow] Type: {list_it}")
    if stats.waiting:
        note(
            f"[yellow]{count(stats.waiting, 'message')} left.[/yellow] Was it sent with to=NAME, for --broker NAME=URL?"
        )
    if stats.delayed:
        note(f"{count(stats.delayed, 'delayed message')} left, whose time has not come.")
    if stats.held or stats.waiting:
        raise typer.Exit(ExitCode.ATTENTION)


def _publishers(brokers: Sequence[str], *, fail_fast: bool) -> dict[str, Adapter]:
    publishers: dict[str, Adapter] = {}
    for each in brokers:
        named = _NAMED.fullmatch(each)
        name, url = (named[1], named[2]) if named else ("", each)
        if name in publishers:
            raise ConfigurationError(
                f"two brokers {f'of the name {name}' if name else 'without a name'}: write --broker NAME=URL"
            )
        publishers[name] = _publisher(url_in(url), **({"fail_fast": True} if fail_fast else {}))
    return publishers


def _publisher(broker: str, **options: Any) -> Adapter:
    scheme = broker.partition(":")[0]
    if scheme in ("file", "-", "memory"):
        raise ConfigurationError(
            "a relay publishes to RabbitMQ, ActiveMQ or Kafka: a file is only read, and the messages in memory:// "
            "would end with this command"
        )
    if scheme.startswith("amqp") and "declare=" not in broker:
        # A queue that a mistyped name made would swallow the messages.
        options["declare"] = False
    return adapter_from_url(broker, **options)
