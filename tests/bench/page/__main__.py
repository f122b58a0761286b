"""`python -m tests.bench.page RESULTS...`: keep the results of runs, and write the tables of two pages from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tests.bench.page import KEPT, pages


def main(
    files: Annotated[list[Path], typer.Argument(help="Results of runs, in the order of the page.")],
) -> None:
    """Let the pages show these runs in the place of those that they show. The summary is of the first one."""
    found = [json.loads(file.read_text()) for file in files]
    runs = [run for one in found for run in (one if isinstance(one, list) else [one])]
    KEPT.write_text(json.dumps(runs, indent=1) + "\n")
    for page, text in pages(runs).items():
        page.write_text(text)


if __name__ == "__main__":
    typer.run(main)
