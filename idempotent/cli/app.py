"""The entry point. Imports neither typer nor rich by itself, so that it can say how to get them."""

from __future__ import annotations

import sys

from idempotent.cli.exits import ExitCode


def main() -> None:
    """Run the command line and exit with one of `ExitCode`."""
    try:
        import rich  # noqa: F401 - only whether it is there
        import typer  # noqa: F401
    except ModuleNotFoundError as error:
        print(  # noqa: T201 - there is no console without rich
            f"idempotent: {error.name} is not installed. The command line is an extra.\n"
            '  pip install "idempotent-consumer[cli]"',
            file=sys.stderr,
        )
        sys.exit(ExitCode.CONFIGURATION)
    from idempotent.cli.root import app

    app(prog_name="idempotent")
