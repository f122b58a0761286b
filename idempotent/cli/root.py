"""The typer application: global options, and the one place that turns errors into exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

import idempotent
from idempotent.cli.commands import LazyCommands, paragraphs
from idempotent.cli.configuration import defaults_in
from idempotent.cli.exits import ExitCode, epilog
from idempotent.cli.terminal.output import note, show_error
from idempotent.errors import IdempotentError, forget_words

_DEBUG: Final = f"{__name__}.debug"
_HELP: Final = """The effect of every message happens once, although brokers deliver at least once.

A [bold]checker[/bold] keeps the [bold]keys[/bold] of processed messages in a store: a table of MySQL, MariaDB,
PostgreSQL or SQLite, or Redis. Give the store as --url or, once for all commands, as IDEMPOTENT_URL.
"""


class ExitsWithCode(TyperGroup):
    """Ends each of its commands in an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises typer.Exit: it raised an error of this library, or was interrupted."""
        # The context loses the arguments when the command runs.
        as_json = "--json" in _words(ctx)
        try:
            return super().invoke(ctx)
        except IdempotentError as error:
            show_error(error, as_json=as_json, debug=ctx.meta.get(_DEBUG, False))
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
    help=paragraphs(_HELP),
    no_args_is_help=True,
    rich_markup_mode="rich",
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
            help="A TOML file with options: a table for each command, such as \\[run].",
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


def _words(ctx: Any) -> list[str]:
    """The command and its arguments. Click has renamed the first part of them."""
    first = getattr(ctx, "_protected_args", None) or getattr(ctx, "protected_args", None) or []
    return [*first, *ctx.args]
