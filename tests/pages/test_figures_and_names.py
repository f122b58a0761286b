"""The pages that lead to others take their figures from those of `make bench`, and their names from the code."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Not those of versions, such as 3.37.0.
FIGURE = re.compile(r"(?<![\d.,])(?:\d{1,3}(?:,\d{3})+|\d+\.\d\d)(?![\d.])")
NAME = re.compile(r"`([a-z]+_\w+)`")
# Of what the pages move from or compare with, and of other programs.
THEIRS = {"compose_key", "save_inprogress", "max_allowed_packet", "max_message_size", "search_path"}


@pytest.mark.parametrize("page", ["choosing.md", "comparison.md"])
def test_the_figures_are_those_that_were_measured(page):
    figures = set(FIGURE.findall((DOCS / page).read_text()))
    assert figures, "no figure was found"
    measured = (DOCS / "speed.md").read_text() + (DOCS / "reference" / "figures.md").read_text()
    assert figures <= set(FIGURE.findall(measured))


@pytest.mark.parametrize(
    "page",
    [
        *("choosing.md", "comparison.md", "cookbook.md", "glossary.md", "kubernetes.md", "moving.md"),
        *("production-checklist.md", "reference/limits.md", "troubleshooting.md", "when-it-runs-twice.md"),
    ],
)
def test_the_names_are_those_of_the_code(page):
    """Options, events of the log, series: a renamed one would stay on a page of prose."""
    sources = [path for folder in ("idempotent", "adapters") for path in (ROOT / folder).rglob("*.py")]
    code = {word for path in sources for word in re.findall(r"\w+", path.read_text())}
    names = set(NAME.findall((DOCS / page).read_text())) - THEIRS
    # The exporter adds an ending to the names of counters.
    assert {name for name in names if name not in code and name.removesuffix("_total") not in code} == set()


@pytest.mark.parametrize(
    "said",
    [
        *("Up to date:", "Equal:", "Ahead:", "Different:", "Done:", "Table missing or different"),
        *("Store unreachable", "effect unknown", "times while it ran", "the message has no", "Type: "),
    ],
)
def test_what_troubleshooting_quotes_is_said(said):
    sources = [path for folder in ("idempotent", "adapters") for path in (ROOT / folder).rglob("*.py")]
    assert any(said in path.read_text() for path in sources)
    page = (DOCS / "troubleshooting.md").read_text() + (DOCS / "reference" / "cli.md").read_text()
    assert said.strip(": ").removesuffix(" while it ran") in page
