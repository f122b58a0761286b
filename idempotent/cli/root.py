"""The typer application: the table of commands, global options, and the place that turns errors into exit codes."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

import idempotent
from idempotent.cli.configuration import defaults_in
from idempotent.cli.exits import ExitCode, epilog
from idempotent.cli.terminal.output import AS_JSON, note, show_error
from idempotent.errors import IdempotentError, forget_words

_DEBUG: Final = f"{__name__}.debug"
_HELP: Final = """The effect of every message happens once, although brokers deliver at least once.

A checker keeps the keys of processed messages in a store: a table of MySQL, MariaDB,
PostgreSQL or SQLite, or Redis. Give the store as --url or, once for all commands, as IDEMPOTENT_URL.
"""


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
        idempotent run shop.consumers --broker amqp://localhost --checker db=$URL --metrics-port 9000
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
        idempotent redrive shop.consumers:on_paid --broker $BROKER --checker db=$URL --error 3f9a01c2 --dry-run
        """,
    ),
    Command("dead", "idempotent.cli.dead:app"),
    Command(
        "pause",
        "idempotent.cli.keys.pausing:pause",
        """
        idempotent pause orders.paid:billing --note "the bank is down, OPS-12" --url postgresql+psycopg://user@host/shop
        idempotent pause --url redis://localhost
        """,
    ),
    Command(
        "resume",
        "idempotent.cli.keys.pausing:resume",
        """
        idempotent resume orders.paid:billing --url postgresql+psycopg://user@host/shop
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
    Command(
        "web",
        "idempotent.cli.web:web",
        """
        idempotent web shop.consumers --broker amqp://localhost --checker db=$URL
        idempotent web --url sqlite:///app.db --read-only
        idempotent web shop.consumers --broker $BROKER --checker db=$URL --audit-file audit.jsonl
        """,
    ),
    Command("outbox", "idempotent.cli.outbox:app"),
    Command("migrate", "idempotent.cli.migrate:app"),
    Command("keys", "idempotent.cli.keys.command:app"),
    Command("offsets", "idempotent.cli.offsets:app"),
    Command("runs", "idempotent.cli.runs:app"),
    Command(
        "gc",
        "idempotent.cli.keys.gc:gc",
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
        idempotent doctor shop.consumers --broker amqp://localhost --broker kafka://localhost:9092
        idempotent doctor --broker "amqp://localhost?management=http://localhost:15672" --subject orders.paid
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
    app = typer.Typer(rich_markup_mode=None)
    if isinstance(target, typer.Typer):
        app.add_typer(target, name=command.name)
    else:
        app.command(command.name, epilog=epilog(*cleandoc(command.examples).splitlines()))(target)
    return typer.main.get_group(app).commands[command.name]


class ExitsWithCode(TyperGroup):
    """Ends each of its commands in an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises typer.Exit: it raised an error of this library, or was interrupted."""
        typed = "--json" in ctx.args  # a configuration file is read before the command takes its words
        try:
            return super().invoke(ctx)
        except IdempotentError as error:
            show_error(error, as_json=ctx.meta.get(AS_JSON, typed), debug=ctx.meta.get(_DEBUG, False))
            raise typer.Exit(ExitCode.of(error)) from None
        except KeyboardInterrupt:
            note(
                "[yellow]Interrupted.[/yellow] Completed work stays done; run the same command again to continue."
            )
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        finally:
            forget_words()


class Root(ExitsWithCode):
    """Has the commands of the table."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = LazyCommands()


app = typer.Typer(
    name="idempotent",
    cls=Root,
    help=_HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    # A traceback with local variables would show passwords.
    pretty_exceptions_show_locals=False,
    epilog=epilog(
        "idempotent migrate upgrade --url sqlite:///app.db",
        "idempotent run shop.consumers --broker file:///data/orders.jsonl --checker db=sqlite:///app.db",
        "idempotent keys list --status dead",
    ),
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"idempotent-consumer {idempotent.__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="IDEMPOTENT_DEBUG", help="Show tracebacks of errors.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            envvar="IDEMPOTENT_CONFIG",
            dir_okay=False,
            show_default=False,
            help="A TOML file with options: a table for each command, such as [run].",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version.")
    ] = False,
) -> None:
    """Apply the global options."""
    del version
    ctx.meta[_DEBUG] = debug
    if config is not None:
        assert isinstance(ctx.command, TyperGroup)
        ctx.default_map = defaults_in(config, ctx.command, ctx)
