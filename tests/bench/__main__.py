"""`make bench`: every target, with its figure."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tests.bench.figures import Figures
from tests.bench.machine import machine
from tests.bench.parts import PARTS, Effort
from tests.bench.report import shown, write
from tests.bench.targets import UNREACHED, targets


def main(
    only: Annotated[str, typer.Option(help=f"Parts, separated by commas: {', '.join(PARTS)}.")] = "",
    rounds: Annotated[int, typer.Option(help="Of each contest that has a target.")] = Effort().rounds,
    seconds: Annotated[float, typer.Option(help="Each contender works in a round.")] = Effort().seconds,
    messages: Annotated[int, typer.Option(help="Sent through each broker.")] = Effort().messages,
    rows: Annotated[int, typer.Option(help="Of Spark's frame.")] = Effort().rows,
    into: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("build/bench"),
) -> None:
    """Measure, print the targets, and write a report with pictures.

    Ratios are made inside this run, of contenders in turn. Let nothing else run on the machine meanwhile.
    The exit status is 1 when a target fails that docs/reference/figures.md does not explain.
    """
    names = [name.strip() for name in only.split(",") if name.strip()] or list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        sys.exit(f"unknown: {', '.join(unknown)}; known: {', '.join(PARTS)}")
    console = Console(highlight=False)
    console.print(f"[bold]make bench[/bold]: {', '.join(names)}\n{machine()}\n")
    effort = Effort(rounds=rounds, seconds=seconds, messages=messages, rows=rows)
    figures, began = Figures(), time.monotonic()
    for name in names:
        part_began = time.monotonic()
        with console.status(name) as status:
            PARTS[name](figures, effort, lambda step: status.update(f"[dim]{step}[/dim]"))
        console.print(f"  {name:<12} {time.monotonic() - part_began:4.0f} s")
    scores = [target.score(figures) for target in targets()]
    console.print()
    console.print(shown(score for score in scores if score.passed is not None))
    files = write(into, figures, scores)
    console.print(f"\n{time.monotonic() - began:.0f} s. {files[0]}, with {len(files) - 1} files beside it.")
    failed = [score.target.what for score in scores if score.passed is False]
    if new := [what for what in failed if what not in UNREACHED]:
        sys.exit(f"failed, and docs/reference/figures.md does not say why: {'; '.join(new)}")


if __name__ == "__main__":
    typer.run(main)
