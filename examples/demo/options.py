"""Options that the demos share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from idempotent.cli.configuration import url_in

DuplicatesOption: TypeAlias = Annotated[
    float, typer.Option(min=0.0, max=1.0, metavar="SHARE", help="How many messages are sent twice.")
]
SeedOption: TypeAlias = Annotated[
    int, typer.Option(metavar="N", help="Decides order, duplicates, kills and lost acknowledgements.")
]
KeepOption: TypeAlias = Annotated[bool, typer.Option("--keep", help="Keep the files, tables and keys.")]


def optional_url_in(word: str | None) -> str | None:
    """The URL of an option that need not be given: see `url_in`."""
    return None if word is None else url_in(word)
