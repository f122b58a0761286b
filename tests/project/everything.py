"""`make test-all`: every step one after the other, a log of each in build/test-all/, and a table at the end.

`python -m tests.project.everything --only slow,newest` runs some of them. A step runs also when one before it failed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple, TextIO

import typer
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
LOOK_S = 1.0
REPORT_EVERY_S = 60.0
LAST_LINES = 30
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)

# The last lines of pytest (`1 failed, 20 passed, 3 skipped in 1.2s`) and of torture (`13 of 14 runs kept the promise`).
PYTEST_END = re.compile(r"^=* ?((?:\d+ \w+, )*\d+ \w+) in [\d.]+s", re.MULTILINE)
COUNT = re.compile(r"(\d+) (passed|failed|errors?)\b")
TORTURE_END = re.compile(r"^(\d+) of (\d+) runs kept the promise", re.MULTILINE)


class Step(NamedTuple):
    """One row of the table.

    Attributes:
        preparation: a command without whose success nothing can be tested, which is no failure: a mirror may be away.
    """

    name: str
    target: str
    meaning: str
    preparation: tuple[str, ...] = ()


STEPS = (
    Step("gate", "test", "style, types and quick tests: what every change must pass"),
    Step(
        "slow", "slow", "the tests that take longer than three seconds, random ones with all their examples"
    ),
    Step("newest", "newest", "the newest servers", preparation=("timeout", "20m", ".ci/newest-servers")),
    Step("pythons", "pythons", "the other Pythons that are found here, without servers"),
    Step("lowest", "lowest", "the plug-ins on the oldest frameworks that pyproject.toml allows"),
    Step("torture", "brief-torture", "every broker with every checker, ten seconds of faults each"),
)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What became of a step.

    Attributes:
        code: exit code of its command; None if it could not be prepared, so that nothing was tested.
    """

    step: Step
    code: int | None
    passed: int
    failed: int
    seconds: float

    @property
    def word(self) -> str:
        if self.code is None:
            return "not tested"
        return "passed" if self.code == 0 else "FAILED"


def count(text: str) -> tuple[int, int]:
    """How many passed, and how many failed, by the last line of each program that tested in this log.

    A test that failed beside the others, and passed alone, is in both: the run of it alone has a line of its own.
    """
    passed = failed = 0
    for line in PYTEST_END.findall(text):
        for number, word in COUNT.findall(line):
            if word == "passed":
                passed += int(number)
            else:
                failed += int(number)
    for kept, runs in TORTURE_END.findall(text):
        passed += int(kept)
        failed += int(runs) - int(kept)
    return passed, failed


def run(step: Step, make: str, logs: Path, console: Console) -> StepResult:
    """Run one step with its output in a log, and say every minute how far it is."""
    began = time.monotonic()
    log = logs / f"{step.name}.log"
    console.print(f"{step.name}: {step.meaning}; log: {log}", soft_wrap=True)
    with log.open("w") as output:
        prepared = call(step.preparation, output, console) == 0 if step.preparation else True
        code = call((make, step.target), output, console) if prepared else None
    text = log.read_text(errors="replace")
    if code != 0:
        console.print("\n".join(text.splitlines()[-LAST_LINES:]), markup=False, soft_wrap=True)
    return StepResult(step, code, *count(text), time.monotonic() - began)


def call(command: Sequence[str], output: TextIO, console: Console) -> int:
    """Exit code of a command. When this process is interrupted, the command ends as by Ctrl-C, and this waits for it.

    In a session of its own it gets one signal, from here: `make` would pass a SIGTERM on to the shell of a recipe
    alone, and what the shell had started would go on.
    """
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=os.environ | {"CI": "true"},
        start_new_session=True,
    )
    began = reported = time.monotonic()
    try:
        while (code := process.poll()) is None:
            time.sleep(LOOK_S)
            if time.monotonic() - reported > REPORT_EVERY_S:
                reported = time.monotonic()
                minutes = (reported - began) / 60
                console.print(f"  {minutes:.0f} min: {last_line(output)}", markup=False, soft_wrap=True)
        return code
    finally:
        if process.poll() is None:
            # Once is enough: a second signal, such as `make` passes on, would end the waiting.
            for number in INTERRUPTS:
                signal.signal(number, signal.SIG_IGN)
            console.print("Interrupted: the step ends what it has started")
            os.killpg(process.pid, signal.SIGINT)
            process.wait()


def last_line(output: TextIO) -> str:
    """What the command said last; pytest's lines end with a percentage."""
    lines = Path(output.name).read_text(errors="replace").split()
    return " ".join(lines[-4:])


def show(results: Iterable[StepResult], console: Console) -> None:
    """The table."""
    table = Table("step", "result")
    for heading in ("passed", "failed", "time"):
        table.add_column(heading, justify="right")
    for result in results:
        minutes, seconds = divmod(round(result.seconds), 60)
        table.add_row(
            result.step.name,
            result.word,
            f"{result.passed:,}",
            f"{result.failed:,}",
            f"{minutes}:{seconds:02}",
        )
    console.print(table)


def main(
    only: Annotated[
        str, typer.Option(help=f"Steps, with commas: {', '.join(step.name for step in STEPS)}.")
    ] = "",
    make: Annotated[str, typer.Option(help="The program that makes a step's target.")] = "make",
    logs: Annotated[Path, typer.Option(help="Folder of the steps' logs.")] = ROOT / "build" / "test-all",
) -> None:
    """Run the steps, and end with 1 if one of them failed.

    Example: make test-all ONLY=slow,newest
    """
    console = Console(highlight=False, emoji=False)
    chosen = [name.strip() for name in only.split(",") if name.strip()] or [step.name for step in STEPS]
    if unknown := set(chosen) - {step.name for step in STEPS}:
        sys.exit(
            f"no such step: {', '.join(sorted(unknown))}. Known: {', '.join(step.name for step in STEPS)}"
        )
    # SIGINT too: in the background of a shell it is ignored, here and in all that this starts.
    for number in INTERRUPTS:
        signal.signal(number, signal.default_int_handler)
    logs.mkdir(parents=True, exist_ok=True)
    results: list[StepResult] = []
    try:
        results.extend(run(step, make, logs, console) for step in STEPS if step.name in chosen)
    except KeyboardInterrupt:
        console.print("Done before that:")
        show(results, console)
        sys.exit(130)
    show(results, console)
    sys.exit(any(result.code not in (0, None) for result in results))


if __name__ == "__main__":
    typer.run(main)
