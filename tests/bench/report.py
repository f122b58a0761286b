"""The report of a run: figures as JSON, tables as Markdown, and pictures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.table import Table

from tests.bench.figures import Figures, What
from tests.bench.goals import Score
from tests.bench.page import MARKS, results, tables

_COLORS: Final = {True: "green", False: "red", None: "dim"}
_OURS: Final = ("Checker", "Relay", "run.")


def shown(scores: Iterable[Score]) -> Table:
    """The targets, for the terminal."""
    table = Table("what", "target", "figure", "by hand", "", title="Targets", title_justify="left")
    for score in scores:
        mark = f"[{_COLORS[score.passed]}]{MARKS[score.passed]}[/]"
        table.add_row(score.target.what, score.wanted, score.shown, score.by_hand, mark)
    return table


def write(folder: Path, figures: Figures, scores: Sequence[Score]) -> list[Path]:
    """Write everything into a folder. Returns the files.

    Args:
        folder: made if it is missing.
        figures: all of the run.
        scores: of the targets.
    """
    folder.mkdir(parents=True, exist_ok=True)
    report, data, kept = folder / "report.md", folder / "figures.json", folder / "results.json"
    data.write_text(json.dumps([asdict(figure) for figure in figures.all], indent=1))
    run = results(figures, scores)
    kept.write_text(json.dumps(run, indent=1))
    report.write_text("\n".join(tables(run)) + "\n")
    return [report, data, kept, *_plots(folder, figures)]


def _plots(folder: Path, figures: Figures) -> list[Path]:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    paths = []
    for where in _places(figures):
        chosen = [f for f in figures.all if f.where == where and f.what is What.FRESH and f.threads == 1]
        if not chosen:
            continue
        chosen.sort(key=lambda figure: figure.rate)
        labels = [f"{figure.who}{f', {figure.batch}' if figure.batch > 1 else ''}" for figure in chosen]
        picture, axes = plt.subplots(figsize=(9, 0.6 + 0.32 * len(chosen)), layout="constrained")
        colors = [
            "tab:blue" if any(word in figure.who for word in _OURS) else "tab:gray" for figure in chosen
        ]
        bars = axes.barh(labels, [figure.rate for figure in chosen], color=colors)
        axes.bar_label(bars, [f"{figure.rate:,.0f}" for figure in chosen], padding=3, fontsize=8)
        axes.set_xscale("log")
        axes.margins(x=0.15)
        axes.set_xlabel("fresh messages a second, one thread (logarithmic)")
        axes.set_title(where, loc="left")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        path = folder / f"{where.lower().replace(' ', '-')}.png"
        picture.savefig(path, dpi=110)
        plt.close(picture)
        paths.append(path)
    return paths


def _places(figures: Figures) -> list[str]:
    return list(dict.fromkeys(figure.where for figure in figures.all))
