"""`idempotent redrive`: dead letters go back to their queue, and their keys are opened."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from idempotent.adapters import adapter_from_url
from idempotent.cli.exits import ExitCode
from idempotent.cli.modules import consumer_at, register_checkers
from idempotent.cli.options import BrokerOption, CheckersOption, JsonOption
from idempotent.cli.output import Unit, count, emit, note, plain, progress, say
from idempotent.redrive import redrive as bring_back


def redrive(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:CONSUMER", show_default=False, help="The decorated handler.")
    ],
    broker: BrokerOption,
    checker: CheckersOption = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", show_default=False, help="The most letters to return.")
    ] = None,
    idle: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Without a letter for so long, there are none.")
    ] = 3.0,
    as_json: JsonOption = False,
) -> None:
    """Bring a consumer's dead letters back to their queue, so that they run.

    Mend first what killed them. The key of each is opened, the message is published again and confirmed, and only then
    does the letter go: stopped half-way, it loses nothing, and a message that comes back twice still runs once.

    Exit code 1: some letters stay, because they have no key, or their key changed meanwhile.
    """
    registry, consumer = consumer_at(target)
    try:
        register_checkers(registry, checker or ())
        adapter = adapter_from_url(broker)
        with progress(Unit.UNBOUNDED, quiet=as_json) as bar:
            task = bar.add_task("looking for dead letters", total=None)
            done = bring_back(
                consumer,
                adapter,
                limit=limit,
                idle_s=idle,
                on_letter=lambda now: bar.update(
                    task, description=f"{count(now.returned, 'message')} returned"
                ),
            )
    finally:
        registry.close()
    if as_json:
        emit(consumer=consumer.name, **asdict(done))
    else:
        say(
            f"[green]Done:[/green] {count(done.returned, 'message')} of {plain(consumer.name)} returned, "
            f"{count(done.reopened, 'key')} reopened."
        )
    if done.left:
        if not as_json:
            note(f"[yellow]{count(done.left, 'letter')} left:[/yellow] without a key, or changed meanwhile.")
        raise typer.Exit(ExitCode.ATTENTION)
