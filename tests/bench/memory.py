"""Memory of a worker over very many messages: `python -m tests.bench.memory`. It has to be flat."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.bench import servers

ROOT: Final = Path(__file__).parent.parent.parent
# An interpreter's heap moves a little by itself.
MOST_GROWTH: Final = 0.05
MOST_BYTES: Final = 4 * 2**20
_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Sample:
    """The worker's process at one moment.

    Attributes:
        messages: settled by then.
        resident_bytes: memory.
        descriptors: open files and sockets.
    """

    messages: int
    resident_bytes: int
    descriptors: int


@dataclass(frozen=True, slots=True)
class Flatness:
    """What the samples say.

    Attributes:
        early_bytes: median of the second quarter; in the first one, pools and caches are still filling.
        late_bytes: median of the last quarter.
        descriptors: more of them in the last quarter than in the second one.
    """

    early_bytes: float
    late_bytes: float
    descriptors: float

    @property
    def is_flat(self) -> bool:
        """Whether neither memory nor descriptors grow."""
        allowed = max(self.early_bytes * MOST_GROWTH, MOST_BYTES)
        return self.late_bytes - self.early_bytes <= allowed and self.descriptors <= 0


def measure(
    *,
    messages: int = 1_000_000,
    every: int = 50_000,
    batch: int = 500,
    leak: bool = False,
    on_sample: Callable[[Sample], object] = lambda _: None,
) -> list[Sample]:
    """Let a worker in a process of its own consume so many messages through Redis, in batches.

    Args:
        messages: how many.
        every: after so many a sample is taken.
        batch: messages together.
        leak: keep every message, to see this fail.
        on_sample: called with each sample.

    Raises:
        RuntimeError: the worker's process failed.
    """
    redis = servers.redis()
    try:
        redis.start()
        words = [redis.url, str(messages), str(every), str(batch), *(["--leak"] if leak else [])]
        samples = []
        with subprocess.Popen(
            [sys.executable, "-m", "tests.bench.memory_child", *words], cwd=ROOT, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                samples.append(Sample(**json.loads(line)))
                on_sample(samples[-1])
        if process.returncode:
            raise RuntimeError(f"the worker ended with {process.returncode}")
    finally:
        redis.close()
    return samples


def flatness(samples: Sequence[Sample]) -> Flatness:
    """Compare the last quarter of the samples with the second one."""
    quarter = len(samples) // 4
    assert quarter, "fewer than four samples say nothing"
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    return Flatness(
        statistics.median(sample.resident_bytes for sample in early),
        statistics.median(sample.resident_bytes for sample in late),
        statistics.median(sample.descriptors for sample in late)
        - statistics.median(sample.descriptors for sample in early),
    )


def main(
    messages: int = 1_000_000,
    every: int = 50_000,
    batch: int = 500,
    leak: Annotated[bool, typer.Option("--leak", help="keep every message, to see this fail")] = False,
) -> None:
    """Watch a worker's memory. Ends with 1 when it grows."""
    console = Console(highlight=False)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("Messages", total=messages)
        samples = measure(
            messages=messages,
            every=every,
            batch=batch,
            leak=leak,
            on_sample=lambda sample: progress.update(task, completed=sample.messages),
        )
    table = Table("messages", "MiB", "descriptors", title="A worker's memory", title_justify="left")
    for sample in samples:
        memory = f"{sample.resident_bytes / _MIB:.1f}"
        table.add_row(f"{sample.messages:,}", memory, str(sample.descriptors))
    console.print(table)
    found = flatness(samples)
    grown = (found.late_bytes - found.early_bytes) / _MIB
    console.print(
        f"{'flat' if found.is_flat else 'GROWS'}: {grown:+.1f} MiB, {found.descriptors:+g} descriptors"
    )
    raise typer.Exit(0 if found.is_flat else 1)


if __name__ == "__main__":
    typer.run(main)
