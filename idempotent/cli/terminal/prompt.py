"""Asks for confirmation before something is lost."""

from __future__ import annotations

import typer

from idempotent.cli.exits import ExitCode
from idempotent.cli.terminal.output import note


def confirm(question: str, *, yes: bool) -> None:
    """Continue only if the user agrees, or gave `--yes`.

    Raises:
        typer.Exit: the user did not agree.
    """
    if yes:
        return
    try:
        # On stderr: stdout is for the result.
        agreed = typer.confirm(question, err=True)
    except typer.Abort:
        note("\n[yellow]No answer:[/yellow] nothing was changed. --yes skips the question.")
        raise typer.Exit(ExitCode.USAGE) from None
    if not agreed:
        note("Nothing was changed.")
        raise typer.Exit(ExitCode.ATTENTION)
