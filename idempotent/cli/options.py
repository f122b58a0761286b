"""Options that several commands share, and the durations that they take."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from idempotent.cli.configuration import BROKER_VARIABLE, URL_VARIABLE, url_in
from idempotent.cli.terminal.logs import LogFormat
from idempotent.cli.terminal.output import AS_JSON
from idempotent.views.keys import Status

_UNITS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_FORM: Final = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})?\s*")


def urls_in(words: str | list[str] | None) -> str | list[str] | None:
    """`url_in` for an option that may be left out, or repeated."""
    if isinstance(words, str):
        return url_in(words)
    return words and [url_in(word) for word in words]


def _noted(context: typer.Context, as_json: bool) -> bool:
    """Let an error that ends the command know for whom it is."""
    context.meta[AS_JSON] = as_json
    return as_json


def _url(where: str) -> Any:
    """The option for the URL of a store, with the beginning of its help."""
    return typer.Option(
        "--url",
        envvar=URL_VARIABLE,
        metavar="URL",
        show_default=False,
        callback=urls_in,
        help=f"{where} Or env:VARIABLE.",
    )


_DATABASES: Final = "sqlite:///app.db, mysql+pymysql://user:pw@host/db, postgresql+psycopg://user:pw@host/db"
_WHERE_KEYS_ARE: Final = _url(f"Where the keys are: {_DATABASES}, redis://host:6379/0.")
UrlOption: TypeAlias = Annotated[str, _WHERE_KEYS_ARE]
OptionalUrlOption: TypeAlias = Annotated[str | None, _WHERE_KEYS_ARE]
OutboxUrlOption: TypeAlias = Annotated[str, _url(f"The database of the outbox: {_DATABASES}.")]
TableOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--table",
        metavar="NAME",
        show_default=False,
        help="The key table, if it is not deduplicate_tbl. SCHEMA.NAME: in that schema (MySQL: database).",
    ),
]
PrefixOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--prefix",
        metavar="TEXT",
        show_default=False,
        help="Redis: the prefix of the keys, if it is not idempotent:",
    ),
]
LimitOption: TypeAlias = Annotated[
    int | None, typer.Option(min=0, help="At most this many; 0 for all. Default: 100, with --json all.")
]
JsonOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--json",
        is_eager=True,
        callback=_noted,
        help="For machines: JSON, one object a line, without progress.",
    ),
]
DryRunOption: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")
]
YesOption: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
CheckersOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--checker",
        metavar="NAME=URL",
        show_default=False,
        help="A named checker; may be repeated. Put transactional+ before an SQL URL for a transactional one. "
        "NAME=env:VARIABLE keeps a password off the command line.",
    ),
]
TargetArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="MODULE:CONSUMER", show_default=False, help="The decorated handler.")
]
LettersOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--letter",
        metavar="LETTER",
        show_default=False,
        help="Only this letter: its key, the hash of that, the id of its message, or its place; may be repeated.",
    ),
]
ErrorOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--error",
        metavar="GROUP",
        show_default=False,
        help="Only letters of this group of errors: see dead list.",
    ),
]
MostLettersOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--limit", min=1, metavar="N", show_default=False, help="At most so many letters of a consumer."
    ),
]
IdleOption: TypeAlias = Annotated[
    float, typer.Option(min=0.1, metavar="SECONDS", help="End after this time without a letter.")
]
KeyArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="KEY", show_default=False, help="subject:group:id, or the 40 hex digits of its hash."
    ),
]
ConsumerOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--consumer", metavar="SUBJECT:GROUP", show_default=False, help="Only keys of this consumer."
    ),
]
ConsumersOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--consumers",
        metavar="SUBJECT:GROUP",
        show_default=False,
        help="Serve only this consumer; may be repeated. Default: all of the registry.",
    ),
]
StatusOption: TypeAlias = Annotated[
    list[Status] | None,
    typer.Option(
        "--status",
        metavar="STATE",
        show_default=False,
        help="Only keys in this state: in_progress, done or dead; may be repeated.",
    ),
]
LapsedOption: TypeAlias = Annotated[
    bool, typer.Option("--lapsed", help="Only keys in progress whose lease has ended.")
]
_WHERE_MESSAGES_ARE: Final = typer.Option(
    "--broker",
    metavar="URL",
    envvar=BROKER_VARIABLE,
    show_default=False,
    callback=urls_in,
    help="Where the messages are; the adapter's options follow the ?. Or env:VARIABLE.",
)
BrokerOption: TypeAlias = Annotated[str, _WHERE_MESSAGES_ARE]
OptionalBrokerOption: TypeAlias = Annotated[str | None, _WHERE_MESSAGES_ARE]
BrokersOption: TypeAlias = Annotated[list[str] | None, _WHERE_MESSAGES_ARE]
ConcurrencyOption: TypeAlias = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="N",
        help="Handlers to run at once: so many in threads, and so many `async def` ones as tasks.",
    ),
]
BatchSizeOption: TypeAlias = Annotated[
    int, typer.Option(min=1, metavar="N", help="Messages to claim and complete together.")
]


FailFastOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--fail-fast",
        help="End immediately if a broker or a store cannot be used, instead of waiting for it.",
    ),
]
HealthFileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="Rewritten every second meanwhile: ready, connecting (no broker), or store (unusable).",
    ),
]
MetricsPortOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        metavar="PORT",
        show_default=False,
        help="Serve /metrics for Prometheus, and /livez, /readyz, /startedz with what runs; 0: any free port.",
    ),
]
MetricsAddressOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        show_default=False,
        help="Where; default: 127.0.0.1. 0.0.0.0 lets other machines read it, keys of messages that run included.",
    ),
]
HangAfterOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        metavar="SECONDS",
        show_default=False,
        help="/livez fails while a handler has run for so long. Default: however long it runs.",
    ),
]


class LogLevel(Enum):
    """How much of the log is shown."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


LogLevelOption: TypeAlias = Annotated[
    LogLevel, typer.Option(help="The lowest level of log messages to show, on stderr.")
]
LogFormatOption: TypeAlias = Annotated[
    LogFormat, typer.Option(help="text, or json: one object a line, for machines.")
]


def typed(context: typer.Context) -> set[str]:
    """The names of the options that the user has given, on the command line, in the environment or in a file."""
    sources = ((name, context.get_parameter_source(name)) for name in context.params)
    return {name for name, source in sources if source is not None and source.name != "DEFAULT"}


def seconds(text: str) -> float:
    """The duration in seconds; a number alone counts seconds. Raises typer.BadParameter: not a duration."""
    found = _FORM.fullmatch(text.lower())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a duration: write 90s, 15min, 12h, 14d or 2w")
    return float(found[1]) * _UNITS[found[2] or "s"]


def in_words(duration_s: float) -> str:
    """The duration in the largest unit of which it has at least two."""
    for unit, size in sorted(_UNITS.items(), key=lambda pair: -pair[1]):
        if unit != "w" and duration_s >= 2 * size:
            return f"{duration_s / size:.3g} {'days' if unit == 'd' else unit}"
    return f"{duration_s:.3g} s"


WithinOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--since",
        parser=seconds,
        metavar="DURATION",
        show_default=False,
        help="Only letters whose keys died in this time: 90s, 2h, 3d.",
    ),
]
