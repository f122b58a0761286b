"""The table of commands: a row for each, imported only when it runs or its help is shown."""

from __future__ import annotations

import inspect
from collections import UserDict
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import cleandoc
from typing import Any, Final

import typer

from idempotent.cli.exits import epilog


@dataclass(frozen=True, slots=True)
class Command:
    """A row of the table. The help is the function's docstring.

    Attributes:
        name: what is typed after `idempotent`.
        target: `module:attribute` of a function, or of a `typer.Typer` with commands of its own.
        examples: a line each; they stand below the function's help.
    """

    name: str
    target: str
    examples: str = ""


COMMANDS: Final = (
    Command(
        "run",
        "idempotent.cli.run:run",
        """
        idempotent run shop.consumers --broker file:///data/orders.jsonl --checker db=postgresql+psycopg://user@host/shop
        idempotent run shop.consumers:registry --broker file:///data/orders.jsonl --checker db=sqlite:///app.db
        idempotent run shop.consumers --broker file://orders.jsonl --checker db=$URL --concurrency 4 --batch-size 100
        """,
    ),
    Command(
        "replay",
        "idempotent.cli.replay:replay",
        """
        idempotent replay orders.jsonl shop.consumers:on_paid --checker db=sqlite:///app.db
        idempotent replay dump.jsonl.gz shop.consumers:on_paid --id-field order_id --batch-size 500
        zcat dump.gz | idempotent replay - shop.consumers:on_paid --rejects bad.jsonl --json
        """,
    ),
    Command(
        "redrive",
        "idempotent.cli.redrive:redrive",
        """
        idempotent redrive shop.consumers:on_paid --broker amqp://localhost --checker db=$URL
        idempotent redrive shop.consumers:on_paid --broker kafka://localhost --checker db=$URL --limit 10
        """,
    ),
    Command(
        "relay",
        "idempotent.cli.relay:relay",
        """
        idempotent relay --outbox postgresql+psycopg://user:password@host/shop --broker amqp://localhost
        idempotent relay --outbox env:DATABASE_URL --broker kafka://localhost:9092 --batch-size 1000
        """,
    ),
    Command("outbox", "idempotent.cli.outbox:app"),
    Command("migrate", "idempotent.cli.migrate:app"),
    Command("keys", "idempotent.cli.keys.command:app"),
    Command(
        "gc",
        "idempotent.cli.gc:gc",
        """
        idempotent gc --url sqlite:///app.db
        idempotent gc --url mysql+pymysql://user:password@host/db --batch-size 5000 --json
        """,
    ),
    Command(
        "doctor",
        "idempotent.cli.doctor:doctor",
        """
        idempotent doctor --url postgresql+psycopg://user:password@host/db
        idempotent doctor --url redis://localhost --redelivery-horizon 7d
        idempotent doctor --json | jq -r 'select(.level != "ok") | .what'
        """,
    ),
)


class LazyCommands(UserDict[str, Any]):
    """The commands of the table by name. Looking one up imports it."""

    def __init__(self) -> None:
        """Import nothing."""
        super().__init__({command.name: command for command in COMMANDS})

    def __getitem__(self, name: str) -> Any:
        return _load(self.data[name])


@cache
def _load(command: Command) -> Any:
    """The command as typer makes it."""
    module, _, attribute = command.target.partition(":")
    target = getattr(import_module(module), attribute)
    app = typer.Typer(rich_markup_mode="rich")
    if isinstance(target, typer.Typer):
        app.add_typer(target, name=command.name)
    else:
        app.command(command.name, epilog=epilog(*cleandoc(command.examples).splitlines()))(target)
    flow(app)
    return typer.main.get_group(app).commands[command.name]


def flow(app: typer.Typer) -> None:
    """Let the help of every command and subcommand flow to the width of the terminal."""
    for command in app.registered_commands:
        if command.help is None and command.callback is not None:
            command.help = paragraphs(inspect.getdoc(command.callback) or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            flow(group.typer_instance)


def paragraphs(text: str) -> str:
    """The text with each paragraph on one line."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
