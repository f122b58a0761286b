"""docs/monitoring.md: a heading for each alert, and commands that the command line takes as they stand.

`test_the_commands_of_a_page_run` runs them, too.
"""

import os
import re
import shlex
from pathlib import Path

import pytest
import typer

from idempotent.cli.root import app

PAGE = Path(__file__).parents[3] / "docs" / "monitoring.md"
ALERTS = PAGE.parent / "monitoring" / "alerts.yml"
METRICS = PAGE.parent / "reference" / "metrics.md"
LINES = [
    line for block in re.findall(r"(?ms)^```sh\n(.*?)^```$", PAGE.read_text()) for line in block.splitlines()
]
SETTINGS = [line.removeprefix("export ").split("=", 1) for line in LINES if line.startswith("export ")]
COMMANDS = [line for line in LINES if not line.startswith("export ")]


def test_each_alert_has_a_heading_in_the_order_of_the_rules():
    named = re.findall(r"(?m)^ +- alert: (\w+)$", ALERTS.read_text())
    assert re.findall(r"(?m)^### (\w+)$", PAGE.read_text()) == named


def test_the_metrics_page_links_each_series_with_the_rules_that_use_it():
    rules = re.findall(r"(?ms)^ +- alert: (\w+)\n(.+?)^ +labels:", ALERTS.read_text())
    rows = re.findall(r"(?m)^\| `(idempotent_\w+)` \|.* \|(.*) \|$", METRICS.read_text())
    linked = {series: re.findall(r"\[(\w+)\]\(\.\./monitoring\.md#", last) for series, last in rows}
    used = {series: [name for name, rule in rules if re.search(rf"{series}\b", rule)] for series in linked}
    assert {series: set(names) for series, names in linked.items()} == {
        series: set(names) for series, names in used.items()
    }
    assert {name for names in used.values() for name in names} == {name for name, _ in rules}


@pytest.mark.parametrize("line", sorted(set(COMMANDS)))
def test_the_command_line_takes_a_command_as_it_stands(line, monkeypatch):
    for name, value in SETTINGS:
        monkeypatch.setenv(name, value)
    program, *words = shlex.split(os.path.expandvars(line))
    assert program == "idempotent"
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context(line, words)  # raises what the user would be told
