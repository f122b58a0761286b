"""`--help` teaches: an example and the exit codes for every command; docs/reference/cli.md says the same."""

import re
from pathlib import Path

import pytest
import typer

from idempotent.cli.exits import ExitCode
from idempotent.cli.root import app

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def commands(group=None, path=()):
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


@pytest.mark.parametrize("words", [words for words, _ in commands()], ids=" ".join)
def test_every_command_has_an_example_and_exit_codes(cli, words):
    answer = cli(*words, "--help")
    assert answer.code == 0
    assert f"$ idempotent {' '.join(words)}" in answer.out or f"| idempotent {' '.join(words)}" in answer.out
    assert "Exit codes" in answer.out


@pytest.mark.parametrize("words", [words for words, _ in commands()], ids=" ".join)
def test_help_shows_no_markup_and_every_placeholder(cli, words):
    answer = cli(*words, "--help")
    assert "\\" not in answer.out
    for parameter in dict(commands())[words].params:
        assert (parameter.metavar or "") in answer.out


def test_examples_use_only_options_that_exist():
    found = dict(commands())
    for text in [*(command.epilog for command in found.values()), DOCS.read_text()]:
        for found_line in re.findall(
            r"idempotent ((?:[a-z][a-z-]* )+.*?--.*)", re.sub(r"\\\n\s*", " ", text)
        ):
            line = re.split(r"\[/| \| |`", found_line)[0]
            names = [words for words in found if line.startswith(" ".join(words) + " ")]
            assert names, line
            known = {option for parameter in found[names[0]].params for option in parameter.opts}
            known |= {option for parameter in found[names[0]].params for option in parameter.secondary_opts}
            assert set(re.findall(r"(?<=\s)--[a-z-]+", f" {line}")) <= known | {"--help"}, line


def test_the_docs_list_every_command_and_every_exit_code():
    text = DOCS.read_text()
    for words, _ in commands():
        assert f"idempotent {' '.join(words)}" in text
    for code in ExitCode:
        assert f"| {code.value} |" in text


def test_no_command_shows_the_help(cli):
    answer = cli()
    assert "Usage: idempotent" in answer.out + answer.err
    assert "migrate" in answer.out + answer.err
