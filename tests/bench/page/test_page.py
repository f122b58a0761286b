"""The pages with figures show the results that are kept, and those of a run are such results."""

from __future__ import annotations

import json

from tests.bench.figures import Figure, Figures, What
from tests.bench.page import KEPT, pages, results, tables
from tests.bench.targets import targets


def test_the_pages_show_the_results_that_are_kept():
    for page, text in pages(json.loads(KEPT.read_text())).items():
        assert page.read_text() == text, "run `python -m tests.bench.page tests/bench/page/results.json`"


def test_the_targets_of_the_kept_results_are_those_of_the_benchmark():
    known = {target.what for target in targets()}
    kept = {target["what"] for run in json.loads(KEPT.read_text()) for target in run["targets"]}
    assert kept <= known


def test_a_run_gives_results_for_a_page():
    ours = Figure("Memory", "MemoryChecker", What.FRESH, 1, 1, (9.0,), 9.0, 1200.0, 0.0)
    again = Figure("Memory", "MemoryChecker", What.DUPLICATES, 1, 1, (4.0,), 4.0, 4.0, 0.0)
    bare = Figure("Memory", "by hand", What.FRESH, 1, 1, (1.0,), 1.0, 1.0, 0.0)
    figures = Figures([ours, again, bare])
    run = json.loads(json.dumps(results(figures, [target.score(figures) for target in targets()])))
    lines = list(tables(run))
    assert (
        "| decorated call with MemoryChecker, over the bare handler | <= 10 us | 8.00 us |  | pass |" in lines
    )
    assert "| MemoryChecker | 1 | 1 | 111,111 | 9.0 us | 1.2 ms |  | 250,000 |" in lines
