"""Asking before something is lost."""

from __future__ import annotations

import typer

from idempotent.cli.exits import ExitCode
from idempotent.cli.output import note


def confirm(question: str, *, yes: bool) -> None:
    """Go on only if a person says so, or `--yes` did.

    Raises:
        typer.Exit: nobody did.
    """
    if yes:
        return
    try:
        # On stderr: stdout is for the answer.
        agreed = typer.confirm(question, err=True)
    except typer.Abort:
        note("\n[yellow]No answer:[/yellow] nothing was changed. --yes goes ahead without asking.")
        raise typer.Exit(ExitCode.USAGE) from None
    if not agreed:
        note("Nothing was changed.")
        raise typer.Exit(ExitCode.ATTENTION)
