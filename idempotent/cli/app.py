"""The entry point. It imports typer and rich late, to explain how to install them if they are missing."""

from __future__ import annotations

import sys

from idempotent.cli.exits import ExitCode


def main() -> None:
    """Run the command line and exit with one of `ExitCode`."""
    try:
        _run()
    except KeyboardInterrupt:  # before a command runs, which has its own answer
        print("Interrupted.", file=sys.stderr)  # noqa: T201 - rich may not be imported yet
        sys.exit(ExitCode.INTERRUPTED)


def _run() -> None:
    try:
        import rich  # noqa: F401 - only checks that it is installed
        import typer  # noqa: F401
    except ModuleNotFoundError as error:
        print(  # noqa: T201 - rich, which provides the console, may be missing
            f"idempotent: {error.name} is not installed. The command line is an extra.\n"
            '  pip install "idempotent-consumer[cli]"',
            file=sys.stderr,
        )
        sys.exit(ExitCode.CONFIGURATION)
    from idempotent.cli.root import app

    app(prog_name="idempotent")
