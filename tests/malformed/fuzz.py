"""`make fuzz`: the properties of `test_parsers`, with bytes that atheris finds by what they reach in the code.

`python -m tests.malformed.fuzz --only test_an_attempt_is_a_number_of_ours_or_none --seconds 600` for one of them. What
fails is kept by hypothesis, and pytest begins with it the next time.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

PROPERTIES = "tests.malformed.test_parsers"
ROOT = Path(__file__).parent.parent.parent
CORPUS = ROOT / "build" / "fuzz"
# What libFuzzer says when its time is over.
DONE = re.compile(r"Done (\d+) runs in (\d+) second")
COVERAGE = re.compile(r"cov: (\d+)")


def main(
    only: Annotated[str, typer.Option(help="One property; none: each.")] = "",
    seconds: Annotated[int, typer.Option(min=1, help="In all.")] = 300,
    child: Annotated[bool, typer.Option("--child", hidden=True)] = False,
) -> None:
    """Fuzz. Ends with 1 when a property does not hold."""
    if child:
        fuzz(only, seconds)
    console = Console(highlight=False)
    names = [only] if only else sorted(properties(importlib.import_module(PROPERTIES)))
    table = Table("property", "inputs", "places reached", "verdict")
    all_hold = True
    for name in names:
        with console.status(name.replace("_", " ")):
            ended = run(name, max(seconds // len(names), 1))
        done, reached = DONE.search(ended.stderr), COVERAGE.findall(ended.stderr)
        holds = ended.returncode == 0 and done is not None
        all_hold &= holds
        table.add_row(
            name.replace("_", " ").removeprefix("test "),
            f"{int(done[1]):,}" if done else "",
            reached[-1] if reached else "",
            "holds" if holds else "[red]DOES NOT HOLD[/red]",
        )
        if not holds:
            console.print(ended.stdout + ended.stderr, markup=False, soft_wrap=True)
    console.print(table)
    raise typer.Exit(0 if all_hold else 1)


def run(name: str, seconds: int) -> subprocess.CompletedProcess[str]:
    """One property in a process of its own, which is how libFuzzer ends."""
    words = ["--child", "--only", name, "--seconds", str(seconds)]
    command = [sys.executable, "-m", "tests.malformed.fuzz", *words]
    return subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)


def fuzz(name: str, seconds: int) -> None:
    """Does not return."""
    import atheris

    with atheris.instrument_imports(include=["idempotent"]):
        module = importlib.import_module(PROPERTIES)
    corpus = CORPUS / name
    corpus.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={seconds}", f"-artifact_prefix={corpus}/", str(corpus)]
    atheris.Setup([sys.argv[0], *options], properties(module)[name].hypothesis.fuzz_one_input)
    atheris.Fuzz()


def properties(module: Any) -> dict[str, Any]:
    """What hypothesis can drive, by name."""
    return {name: thing for name, thing in vars(module).items() if hasattr(thing, "hypothesis")}


if __name__ == "__main__":
    typer.run(main)
