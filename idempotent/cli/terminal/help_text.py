"""Docstrings as help: typer would keep the line breaks of the source."""

from __future__ import annotations

import inspect

import typer


def flow(app: typer.Typer) -> None:
    """Let the help of every command and subcommand flow to the width of the terminal."""
    for command in app.registered_commands:
        if command.help is None and command.callback is not None:
            command.help = paragraphs(inspect.getdoc(command.callback) or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            flow(group.typer_instance)


def paragraphs(text: str) -> str:
    """The text with each paragraph on one line."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
