"""`idempotent dead`: look at the dead letters of a consumer, and drop those that shall never run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from enum import Enum
from functools import partial
from shlex import quote
from typing import Annotated, Any, Final, TypeAlias

import typer

from idempotent.adapters.urls import letters_adapter_from_url
from idempotent.cli.exits import ExitCode, epilog
from idempotent.cli.modules import checkers_in, consumer_with, consumers_at, reference_of
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
    YesOption,
)
from idempotent.cli.terminal.output import (
    confirm,
    emit,
    note,
    plain,
    progress,
    say,
    show_record,
    show_rows,
    tell,
)
from idempotent.consumer import AnyConsumer
from idempotent.errors import mask, url_word
from idempotent.redrive import ALL, Dropped, Letter, LetterFilter, drop, letters
from idempotent.views.keys import numbers
from idempotent.views.letters import (
    MOST_OF_BODY,
    ErrorGroup,
    body_text,
    by_error,
    changed_meanwhile,
    died,
    in_full,
    row,
)
from idempotent.views.text import count

_HIDDEN: Final = "RabbitMQ hides those that another command or client looks at."
_NO_LETTER: Final = f"No such letter. {_HIDDEN}"
_NO_LETTERS: Final = f"No dead letters. {_HIDDEN}"
_LETTER: Final = "KEY"

_OneLetter: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="LETTER",
        show_default=False,
        help="Its key, the hash of that, the id of its message, or its place, as `dead list --by letter` shows them.",
    ),
]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at dead letters, and drop those that shall never run. To return them: idempotent redrive.",
)


class By(Enum):
    """What a row stands for."""

    ERROR = "error"
    LETTER = "letter"


@app.command(
    "list",
    epilog=epilog(
        "idempotent dead list shop.consumers --broker amqp://localhost --checker db=$URL",
        "idempotent dead list shop.consumers:on_paid --broker amqp://localhost --checker db=$URL --by letter",
        "idempotent dead list shop.consumers:on_paid --broker $BROKER --checker db=$URL --error 3f9a01c2 --json",
    ),
)
def list_letters(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE[:CONSUMER]",
            show_default=False,
            help="The decorated handler, or a module or registry: all of its consumers.",
        ),
    ],
    broker: BrokerOption,
    checker: CheckersOption = None,
    by: Annotated[By, typer.Option(help="A row for each group of errors, or for each letter.")] = By.ERROR,
    letter: LettersOption = None,
    error: ErrorOption = None,
    within: WithinOption = None,
    limit: MostLettersOption = None,
    idle: IdleOption = 3.0,
    as_json: JsonOption = False,
) -> None:
    """List the dead letters of a consumer, or of all consumers of a module, by their errors. They stay where they are.

    Errors of one type belong together if their texts differ in numbers, words with a digit or what stands in quotes
    alone. At most 10,000 letters are looked at; ActiveMQ sends the first 100 (?prefetch=200 in the URL: 200).
    """
    registry, consumers = consumers_at(target)
    only = LetterFilter(frozenset(letter or ()), error, within)
    found: dict[AnyConsumer, list[Letter]] = {}
    with checkers_in(registry, checker, limited=consumers):
        with progress("looking for dead letters", quiet=as_json) as said:
            for consumer in consumers:
                found[consumer] = letters(
                    consumer,
                    letters_adapter_from_url(broker),
                    only=only,
                    limit=limit,
                    idle_s=idle,
                    on_letter=lambda number: said(count(number, "letter")),
                )
        rows = [
            {**({"consumer": consumer.name} if len(consumers) > 1 or as_json else {}), **shown}
            for consumer, theirs in found.items()
            for shown in (
                [_group_row(each, as_json=as_json) for each in by_error(theirs)]
                if by is By.ERROR
                else [row(each, as_json=as_json) for each in theirs]
            )
        ]
        show_rows(rows, as_json=as_json, otherwise=_NO_LETTERS if only == ALL else _NO_LETTER)
        if as_json:
            return
        if first := next(((consumer, theirs[0]) for consumer, theirs in found.items() if theirs), None):
            what, error = plain(quote(reference_of(first[0]))), first[1].error
            options = plain(_options_given(broker, checker))
            note(f"To see one: idempotent dead show {what} {_LETTER} {options}")
            note(f"To return a group: idempotent redrive {what} --error {error} {options}")
            note(f"To drop one: idempotent dead drop {what} --letter {_LETTER} --note WHY {options}")
        if limit is None and only == ALL:
            for consumer, theirs in found.items():
                _tell_of_keys_without_a_letter(consumer, theirs)


@app.command(
    epilog=epilog(
        "idempotent dead show shop.consumers:on_paid orders.paid:billing:4711 --broker amqp://localhost "
        "--checker db=$URL --body",
    )
)
def show(
    target: TargetArgument,
    letter: _OneLetter,
    broker: BrokerOption,
    checker: CheckersOption = None,
    body: Annotated[
        bool, typer.Option("--body", help="Also its body, which may hold what logs must not.")
    ] = False,
    idle: IdleOption = 3.0,
    as_json: JsonOption = False,
) -> None:
    """Show everything about one dead letter: why it died, its headers, and what the store has of its key.

    Exit code 1: there is no such letter.
    """
    with (
        consumer_with(target, checker) as consumer,
        progress("looking for the letter", quiet=as_json),
    ):
        only = LetterFilter(frozenset({letter}))
        found = letters(consumer, letters_adapter_from_url(broker), only=only, idle_s=idle)
    if not found:
        tell(_NO_LETTER, as_json=as_json, letter=letter, found=False)
        raise typer.Exit(ExitCode.ATTENTION)
    one = found[0]
    if len(found) > 1 and not as_json:
        places = " ".join(plain(each.place) for each in found)
        note(f"The first of {count(len(found), 'letter')} of this name: {places}")
    values = in_full(one)
    if as_json:
        if body:
            form, text = ("text", None) if one.message.body is None else body_text(one.message.body)
            values["body" if form == "text" else "body_base64"] = text
        emit(**values)
        return
    headers = values.pop("headers")
    show_record(values)
    for name, value in headers.items():
        show_record({f"header {name}": value})
    if body:
        _say_body(one.message.body)


@app.command(
    "drop",
    epilog=epilog(
        "idempotent dead drop shop.consumers:on_paid --letter 4711 --note 'paid by hand, OPS-812' "
        "--broker amqp://localhost --checker db=$URL",
        "idempotent dead drop shop.consumers:on_paid --error 3f9a01c2 --note 'test data' --broker $BROKER "
        "--checker db=$URL --dry-run",
    ),
)
def drop_letters(
    target: TargetArgument,
    broker: BrokerOption,
    note_: Annotated[
        str,
        typer.Option(
            "--note", metavar="TEXT", show_default=False, help="Why, and by whom: it goes to the log."
        ),
    ],
    checker: CheckersOption = None,
    letter: LettersOption = None,
    error: ErrorOption = None,
    within: WithinOption = None,
    limit: MostLettersOption = None,
    dry_run: DryRunOption = False,
    idle: IdleOption = 3.0,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove dead letters, whose messages will never run: their keys are marked as done.

    Where another letter of a key stays, such as a copy, its key stays dead, and that letter can be returned.

    Exit code 1: there was none, or fewer than were found first.
    """
    if not note_.strip():
        raise typer.BadParameter("--note says why, and by whom")
    if not (letter or error or within):
        raise typer.BadParameter("say which: --letter, --error or --since")
    only = LetterFilter(frozenset(letter or ()), error, within)
    with consumer_with(target, checker) as consumer:
        adapter = partial(letters_adapter_from_url, broker)
        with progress("looking for dead letters", quiet=as_json):
            found = letters(consumer, adapter(), only=only, limit=limit, idle_s=idle)
        if not found:
            tell(_NO_LETTER, as_json=as_json, consumer=consumer.name, **asdict(Dropped()))
            raise typer.Exit(ExitCode.ATTENTION)
        if dry_run:
            text = f"{count(len(found), 'letter')} of {plain(consumer.name)} would be dropped. Nothing was changed."
            tell(text, as_json=as_json, consumer=consumer.name, **asdict(Dropped(len(found))))
            return
        confirm(f"Drop {count(len(found), 'letter')} of {consumer.name}? Their messages never run.", yes=yes)
        with progress("dropping", quiet=as_json) as said:
            # What died or changed since then was not agreed to.
            meant = replace(only, shown={each.place: each.state for each in found})
            done = drop(
                consumer,
                adapter(),
                only=meant,
                note=note_,
                limit=len(found),
                idle_s=idle,
                on_letter=lambda number: said(f"{count(number, 'letter')} dropped"),
            )
    text = f"[green]Done:[/green] {count(done.dropped, 'letter')} of {plain(consumer.name)} dropped."
    changed = f"{plain(changed_meanwhile(done.changed))}." if done.changed else ""
    tell(text, changed, as_json=as_json, consumer=consumer.name, **asdict(done))
    if done.dropped < len(found):
        raise typer.Exit(ExitCode.ATTENTION)


def _options_given(broker: str, checkers: Sequence[str] | None) -> str:
    """The options that name the broker and the store to another command, without passwords."""
    words = [f"--broker {url_word(broker)}"]
    for each in checkers or ():
        name, _, url = each.partition("=")
        words.append(f"--checker {quote(each if mask(url) == url else f'{name}=env:VARIABLE')}")
    return " ".join(words)


def _group_row(group: ErrorGroup[Letter], *, as_json: bool) -> dict[str, Any]:
    return {
        "error": group.error,
        "letters": len(group.members),
        "dead_keys": group.dead_keys,
        "first": died(group.first, as_json=as_json),
        "last": died(group.last, as_json=as_json),
        "reason": group.reason,
    }


def _say_body(body: bytes | None) -> None:
    if body is None:
        say("body: none, a tombstone")
        return
    form, text = body_text(body)
    say(f"{'body' if form == 'text' else 'body base64'}: {plain(text[:MOST_OF_BODY])}")
    if len(text) > MOST_OF_BODY:
        note(f"The first {MOST_OF_BODY:,} characters; --json has all.")


def _tell_of_keys_without_a_letter(consumer: AnyConsumer, found: Sequence[Letter]) -> None:
    """Say how many keys of the consumer are dead whose letters are not here."""
    if consumer.checker.remembers.by_position:
        return
    dead = numbers(consumer.checker.admin().stats(), consumer.name)["dead"]
    if (more := dead - len({each.key for each in found if each.dead is not None})) > 0:
        options = plain(consumer.checker.command_options)
        listed = f"idempotent keys list --status dead --consumer {plain(quote(consumer.name))} {options}"
        what = (
            f"{count(more, 'dead key')} of {plain(consumer.name)} without a letter among these {len(found):,}"
        )
        note(f"{what}: of calls, or of letters that the broker did not send: {listed}")
