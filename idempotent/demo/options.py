"""Options that the demos share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

DuplicatesOption: TypeAlias = Annotated[
    float, typer.Option(min=0.0, max=1.0, metavar="SHARE", help="How many messages are sent twice.")
]
SeedOption: TypeAlias = Annotated[
    int, typer.Option(metavar="N", help="Decides order, duplicates, kills and lost acknowledgements.")
]
KeepOption: TypeAlias = Annotated[bool, typer.Option("--keep", help="Keep the files, tables and keys.")]
