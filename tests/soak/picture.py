"""Memory, descriptors and stored keys over time, in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.soak.line import Reading

MIB = 2**20


def draw(path: Path, readings: Sequence[Reading]) -> None:
    """Draw a line for each process."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (memory, descriptors, keys) = plt.subplots(3, 1, figsize=(9, 8), sharex=True)
    for process in dict.fromkeys(reading.process for reading in readings):
        mine = [reading for reading in readings if reading.process == process]
        minutes = [reading.at_s / 60 for reading in mine]
        memory.plot(minutes, [reading.resident_bytes / MIB for reading in mine], label=process)
        descriptors.plot(minutes, [reading.descriptors for reading in mine], label=process)
        keys.plot(minutes, [reading.keys for reading in mine], label=process)
    for axes, name in ((memory, "memory, MiB"), (descriptors, "descriptors"), (keys, "keys in the store")):
        axes.set(ylabel=name, ylim=(0, None))
        axes.grid(visible=True, alpha=0.3)
    keys.set_xlabel("minutes")
    memory.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
