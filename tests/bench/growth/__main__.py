"""python -m tests.bench.growth --largest 1000000"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

from tests.bench.growth import measure, write
from tests.bench.growth.measure import STORES
from tests.bench.growth.report import markdown


def main(
    largest: Annotated[int, typer.Option(help="Stored keys in the end; 10000000 takes an hour.")] = 1_000_000,
    store: Annotated[list[str] | None, typer.Option(help="MariaDB, PostgreSQL, Redis; default: all")] = None,
    seconds: Annotated[float, typer.Option(help="That each case takes.")] = 1.5,
    into: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("build/bench"),
) -> None:
    """Let the stores grow, and measure what that does."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140
    with console.status("") as status:
        growth = measure(largest=largest, stores=store or STORES, seconds=seconds, on_step=status.update)
    console.print(Markdown("\n".join(markdown(growth))))
    for path in write(into, growth):
        console.print(str(path))


if __name__ == "__main__":
    typer.run(main)
