"""`idempotent dead`: look at the dead letters of a consumer, and drop those that shall never run."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from enum import Enum
from shlex import quote
from typing import Annotated, Any, Final, TypeAlias

import typer

from idempotent.adapters.base import Adapter
from idempotent.adapters.urls import letters_adapter_from_url
from idempotent.claims import KeyStatus
from idempotent.cli.exits import ExitCode, epilog
from idempotent.cli.modules import consumer_at, consumers_at, reference_of, register_checkers
from idempotent.cli.options import (
    BrokerOption,
    CheckersOption,
    DryRunOption,
    ErrorOption,
    IdleOption,
    JsonOption,
    LettersOption,
    TargetArgument,
    WithinOption,
    YesOption,
)
from idempotent.cli.stores import limit_waits
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
from idempotent.registry import Registry
from idempotent.views.letters import ErrorGroup, by_error, changed_meanwhile, died, in_full, row
from idempotent.views.text import count

_SHOWN_BODY: Final = 10_000
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


@contextmanager
def consumer_and_broker(
    target: str, broker: str, checkers: list[str] | None
) -> Iterator[tuple[AnyConsumer, Callable[[], Adapter]]]:
    """The consumer of MODULE:CONSUMER with its checkers, and what makes its adapter."""
    registry, consumer = consumer_at(target)
    with _broker(registry, [consumer], broker, checkers) as adapter:
        yield consumer, adapter


@contextmanager
def _broker(
    registry: Registry, consumers: Sequence[AnyConsumer], broker: str, checkers: list[str] | None
) -> Iterator[Callable[[], Adapter]]:
    """Gives the consumers their checkers, and yields what makes the adapter."""
    try:
        register_checkers(registry, checkers or ())
        for consumer in consumers:
            limit_waits(consumer.checker)
        yield lambda: letters_adapter_from_url(broker)
    finally:
        registry.close()


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
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", show_default=False, help="Look at so many letters of a consumer at most."
        ),
    ] = None,
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
    with _broker(registry, consumers, broker, checker) as adapter:
        with progress("looking for dead letters", quiet=as_json) as said:
            for consumer in consumers:
                found[consumer] = letters(
                    consumer,
                    adapter(),
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
        consumer_and_broker(target, broker, checker) as (consumer, adapter),
        progress("looking for the letter", quiet=as_json),
    ):
        found = letters(consumer, adapter(), only=LetterFilter(frozenset({letter})), idle_s=idle)
    if not found:
        tell(_NO_LETTER, as_json=as_json, letter=letter, found=False)
        raise typer.Exit(ExitCode.ATTENTION)
    one = found[0]
    if len(found) > 1 and not as_json:
        places = " ".join(plain(each.place) for each in found)
        note(f"The first of {count(len(found), 'letter')} of this name: {places}")
    values = in_full(one)
    if as_json:
        emit(**values, **(_body_json(one.message.body) if body else {}))
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
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", show_default=False, help="The most letters to drop.")
    ] = None,
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
    with consumer_and_broker(target, broker, checker) as (consumer, adapter):
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
    tell(text, as_json=as_json, consumer=consumer.name, **asdict(done))
    if done.changed and not as_json:
        note(f"{plain(changed_meanwhile(done.changed))}.")
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


def _body_json(body: bytes | None) -> dict[str, str | None]:
    try:
        return {"body": None if body is None else body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body or b"").decode()}


def _say_body(body: bytes | None) -> None:
    if body is None:
        say("body: none, a tombstone")
        return
    ((name, text),) = _body_json(body).items()
    say(f"{name.replace('_', ' ')}: {plain((text or '')[:_SHOWN_BODY])}")
    if len(text or "") > _SHOWN_BODY:
        note(f"The first {_SHOWN_BODY:,} characters; --json has all.")


def _tell_of_keys_without_a_letter(consumer: AnyConsumer, found: Sequence[Letter]) -> None:
    """Say how many keys of the consumer are dead whose letters are not here."""
    if consumer.checker.remembers.by_position:
        return
    stats = consumer.checker.admin().stats()
    dead = sum(
        each.count for each in stats if each.consumer == consumer.name and each.status is KeyStatus.DEAD
    )
    if (more := dead - len({each.key for each in found if each.dead is not None})) > 0:
        options = plain(consumer.checker.command_options)
        listed = f"idempotent keys list --status dead --consumer {plain(quote(consumer.name))} {options}"
        what = (
            f"{count(more, 'dead key')} of {plain(consumer.name)} without a letter among these {len(found):,}"
        )
        note(f"{what}: of calls, or of letters that the broker did not send: {listed}")
