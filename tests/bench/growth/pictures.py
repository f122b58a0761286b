"""Rate and latency over stored keys, one picture a batch size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.bench.growth.results import Layout, Point

_COLORS: Final = {"MariaDB": "tab:blue", "PostgreSQL": "tab:green", "Redis": "tab:red"}
_LINES: Final = {Layout.BY_HASH: "-", Layout.BY_ID: "--", Layout.STRINGS: "-"}
_MARKS: Final = {True: "o", False: "x"}


def draw(folder: Path, points: Sequence[Point]) -> list[Path]:
    """A picture for each batch size. Returns the files."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    paths = []
    for batch in sorted({point.batch for point in points}):
        figure, (rates, latencies) = plt.subplots(1, 2, figsize=(13, 5.5))
        mine = [point for point in points if point.batch == batch]
        for store, layout, memory in dict.fromkeys((p.store, p.layout, p.memory) for p in mine):
            line = [p for p in mine if (p.store, p.layout, p.memory) == (store, layout, memory)]
            is_small = memory not in ("all", _enough(mine, store))
            style = {
                "color": _COLORS[store],
                "linestyle": _LINES[layout],
                "marker": _MARKS[not is_small],
                "label": f"{store}, {layout}" + (f", {memory} of memory" if is_small else ""),
            }
            stored = [p.stored for p in line]
            rates.plot(stored, [p.rate for p in line], **style)
            latencies.plot(stored, [p.latency.p99_us / 1000 for p in line], **style)
        _axes(rates, "keys a second")
        _axes(latencies, f"p99 of a claim and completion of {batch}, ms")
        figure.suptitle(f"Claim and completion of fresh keys, {batch} at a time, one thread")
        names = rates.get_legend_handles_labels()
        figure.legend(*names, loc="lower center", ncols=3, fontsize=8, handlelength=4)
        figure.tight_layout(rect=(0, 0.14, 1, 1))
        paths.append(folder / f"growth-batch-{batch}.png")
        figure.savefig(paths[-1], dpi=110)
        plt.close(figure)
    return paths


def _enough(points: Sequence[Point], store: str) -> str:
    """The memory of a store's first point, which is enough."""
    return next(point.memory for point in points if point.store == store)


def _axes(axes: Any, name: str) -> None:
    axes.set(xlabel="stored keys", ylabel=name, xscale="log", yscale="log")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_formatter("{x:,g}")
    axes.tick_params(which="minor", labelsize=7)
