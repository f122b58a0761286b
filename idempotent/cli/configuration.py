"""Options that come from elsewhere: `env:VARIABLE` in place of a URL, and `--config FILE`."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperGroup

from idempotent.errors import ConfigurationError, remember_word

URL_VARIABLE: Final = "IDEMPOTENT_URL"
BROKER_VARIABLE: Final = "IDEMPOTENT_BROKER"
_ENVIRONMENT: Final = "env:"
# `transactional+env:VARIABLE`: what stands before the scheme may stand before the variable, or in it.
_FROM_ENVIRONMENT: Final = re.compile(r"((?:[a-z]+\+)?)env:(.*)", re.DOTALL)


def url_in(word: str) -> str:
    """The URL that an option gives: itself, or for `env:VARIABLE` the value of that variable.

    Arguments of a command are visible to every user of the machine, and so would be a password in a URL.

    Raises:
        ConfigurationError: the variable is not set.
    """
    found = _FROM_ENVIRONMENT.fullmatch(word)
    if found is None:
        for variable in (URL_VARIABLE, BROKER_VARIABLE):
            if word == os.environ.get(variable):
                remember_word(word, f"{_ENVIRONMENT}{variable}")
        return word
    prefix, name = found.groups()
    url = os.environ.get(name, "")
    if not url:
        raise ConfigurationError(f"the environment variable {name!r} of {word} is not set")
    remember_word(url, f"{_ENVIRONMENT}{name}")
    return url if url.startswith(prefix) else f"{prefix}{url}"


def defaults_in(path: Path, group: TyperGroup, context: typer.Context) -> dict[str, dict[str, Any]]:
    """The options of a TOML file: a table for each command, in it the long options without --; _ may stand for -.

    Raises:
        ConfigurationError: no TOML, a command or option that does not exist, or an option that is there twice.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"the configuration file {path} cannot be read: {error}") from error
    return {
        name: _options(path, name, given, group.get_command(context, name)) for name, given in tables.items()
    }


def _options(path: Path, name: str, given: object, command: Any) -> dict[str, Any]:
    if command is None:
        raise ConfigurationError(f"{path}: there is no command {name!r}; write for example [run]")
    if not isinstance(given, dict):
        raise ConfigurationError(
            f"{path}: write the options of a command as a table: [run], then {name} = ..."
        )
    known = {word: option for option in command.params for word in option.opts if word.startswith("--")}
    options: dict[str, Any] = {}
    for written, value in given.items():
        word = f"--{written.replace('_', '-')}"
        if word not in known:
            listed = ", ".join(sorted(known))
            raise ConfigurationError(f"{path}: {name} has no option {written!r}; known: {listed}")
        option = known[word]
        if option.name in options:
            raise ConfigurationError(f"{path}: {name} has {word} twice")
        options[option.name] = _value(value, repeated=option.multiple)
    return options


def _value(given: object, *, repeated: bool) -> object:
    if isinstance(given, dict):  # a table, such as [run.checker]: an option NAME=VALUE that may be repeated
        return [f"{name}={word}" for name, word in given.items()]
    return [given] if repeated and isinstance(given, str) else given
