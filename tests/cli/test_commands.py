"""The table of commands: a command is imported only when it is wanted."""

import os
import subprocess
import sys
from pathlib import Path

from idempotent.cli.root import COMMANDS

ROOT = Path(__file__).parents[2]


def modules_after(statement):
    """The project's modules that a fresh Python has imported after a statement."""
    lines = f"import sys\n{statement}\nprint(*sorted(sys.modules))"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", lines], env=environ, capture_output=True, text=True, check=True
    )
    return [name for name in done.stdout.split() if name.startswith("idempotent.")]


def test_an_unknown_command_is_told_the_one_that_was_meant(cli):
    answer = cli("doktor")
    assert answer.code == 2
    assert "Did you mean 'doctor'?" in answer.err


def test_the_command_line_imports_no_command_before_it_is_wanted():
    modules = modules_after("import idempotent.cli.root")
    assert not {command.target.partition(":")[0] for command in COMMANDS} & set(modules)
