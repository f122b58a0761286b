"""The table of commands: packages may be deleted, and a command is imported only when it is wanted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import idempotent
from idempotent.cli.commands import COMMANDS, Command, InstalledCommands

ROOT = Path(__file__).parents[2]


def modules_after(statement):
    """The project's modules that a fresh Python has imported after a statement."""
    lines = f"import sys\n{statement}\nprint(*sorted(sys.modules))"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", lines], env=environ, capture_output=True, text=True, check=True
    )
    return [name for name in done.stdout.split() if name.startswith("idempotent.")]


@pytest.fixture
def packages(tmp_path):
    """A folder of further packages of the product."""
    idempotent.__path__.append(str(tmp_path))
    yield tmp_path
    idempotent.__path__.remove(str(tmp_path))


@pytest.mark.parametrize("left", ["nothing", "compiled files"])
def test_commands_of_a_deleted_package_are_left_out(packages, left):
    if left == "compiled files":
        (packages / "deleted" / "__pycache__").mkdir(parents=True)
    table = (Command("deleted", "idempotent.deleted.command:run"), *COMMANDS)
    assert list(InstalledCommands(table)) == [command.name for command in COMMANDS]


def test_any_other_error_of_a_command_shows(packages):
    package = packages / "broken"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "command.py").write_text("import a_module_that_is_not_installed")
    commands = InstalledCommands((Command("broken", "idempotent.broken.command:run"),))
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_installed"):
        commands["broken"]


def test_an_unknown_command_is_told_the_one_that_was_meant(cli):
    answer = cli("doktor")
    assert answer.code == 2
    assert "Did you mean 'doctor'?" in answer.err


def test_the_command_line_imports_no_command_before_it_is_wanted():
    modules = modules_after("import idempotent.cli.root")
    assert not {command.module for command in COMMANDS} & set(modules)


def test_a_command_of_the_product_imports_neither_demo_nor_torture():
    statement = "from idempotent.cli.commands import InstalledCommands; InstalledCommands()['run']"
    modules = modules_after(statement)
    assert "idempotent.cli.run" in modules
    assert not [name for name in modules if name.startswith(("idempotent.demo", "idempotent.torture"))]
