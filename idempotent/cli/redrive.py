"""`idempotent redrive`: return dead letters to their queue, and reopen their keys."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Final

import typer

from idempotent.adapters.urls import letters_adapter_from_url
from idempotent.cli.exits import ExitCode
from idempotent.cli.modules import consumer_with
from idempotent.cli.options import (
    BrokerOption,
    CheckersOption,
    DryRunOption,
    ErrorOption,
    IdleOption,
    JsonOption,
    LettersOption,
    MostLettersOption,
    TargetArgument,
    WithinOption,
)
from idempotent.cli.terminal.output import note, plain, progress, tell
from idempotent.redrive import LEAST_RATE, LetterFilter, Redriven
from idempotent.redrive import redrive as return_letters
from idempotent.views.letters import why_left, why_stopped
from idempotent.views.text import count

REDRIVE: Final = "idempotent redrive MODULE:CONSUMER --broker URL"
"""What other commands advise for a dead letter."""


def redrive(
    target: TargetArgument,
    broker: BrokerOption,
    checker: CheckersOption = None,
    letter: LettersOption = None,
    error: ErrorOption = None,
    within: WithinOption = None,
    limit: MostLettersOption = None,
    rate: Annotated[
        float | None,
        typer.Option(
            min=LEAST_RATE, metavar="N", show_default=False, help="The most letters to return in a second."
        ),
    ] = None,
    canary: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            show_default=False,
            help="Return N letters first, wait until a worker has processed them, and go on only if none dies again.",
        ),
    ] = None,
    canary_wait: Annotated[
        float,
        typer.Option(min=1, metavar="SECONDS", help="How long the canary waits for them, backoff included."),
    ] = 60.0,
    dry_run: DryRunOption = False,
    idle: IdleOption = 3.0,
    include_unknown: Annotated[
        bool,
        typer.Option(
            "--include-unknown",
            help="Also messages whose effect may have happened (on_expired_lease='park'): if it had, it happens twice.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Return a consumer's dead letters to their queue, so that they run.

    Fix what killed them first. For each letter the key is reopened, the message is published and confirmed, and only
    then is the letter removed: an interruption loses nothing, and a message that is returned twice still runs once. (It
    runs twice with an OffsetChecker or exactly_once, which recognise positions, and have no keys.)

    Beside a running worker, a message that dies again stays. Exit code 1: some letters stay dead, because they have no
    key, their key changed during the redrive, they died after it began, their effect is unknown, or they cannot be
    decoded; or the first ones (--canary) died again, or were not done in time.
    """
    with consumer_with(target, checker) as consumer:
        done = Redriven()
        try:
            with progress("looking for dead letters", quiet=as_json) as said:

                def tell_progress(now: Redriven) -> None:
                    nonlocal done
                    done = now
                    said(f"{count(now.returned, 'message')} returned")

                done = return_letters(
                    consumer,
                    letters_adapter_from_url(broker),
                    only=LetterFilter(frozenset(letter or ()), error, within),
                    limit=limit,
                    rate=rate,
                    canary=canary,
                    canary_wait_s=canary_wait,
                    dry_run=dry_run,
                    idle_s=idle,
                    include_unknown=include_unknown,
                    on_letter=tell_progress,
                )
        except BaseException:
            if done.returned and not dry_run and not as_json:
                note(f"Broken off after {count(done.returned, 'message')} returned.")
            raise
        options = consumer.checker.command_options
    what, returned = plain(consumer.name), count(done.returned, "message")
    reopened = count(done.reopened, "key")
    is_choice = bool(letter or error or within is not None)
    text = f"[green]Done:[/green] {returned} of {what} returned, {reopened} reopened."
    if is_choice and not done.returned:
        text = f"No such letter of {what}: nothing was returned."
    if dry_run:
        text = f"{returned} of {what} would be returned, {reopened} reopened. Nothing was changed."
    remarks = []
    if done.stopped:
        remarks.append(f"[yellow]Stopped after the first ones:[/yellow] {why_stopped(done)}")
    if done.left:
        remarks.append(
            f"[yellow]{count(done.left, 'letter')} left:[/yellow] {plain(why_left(done, options))}"
        )
    if done.undated:
        remarks.append(
            f"[yellow]{count(done.undated, 'letter')} without a dead key passed over by --since:[/yellow] returned "
            "before, rejected without a key, or left by a redrive that was interrupted. `idempotent dead list --by "
            "letter` shows them, and a redrive without --since returns them; what is done already is a duplicate."
        )
    tell(text, *remarks, as_json=as_json, consumer=consumer.name, **asdict(done))
    if done.left or done.stopped or done.undated or (is_choice and not done.returned):
        raise typer.Exit(ExitCode.ATTENTION)
