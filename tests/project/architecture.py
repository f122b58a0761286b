"""`python -m tests.project.architecture` (or `make architecture`): draw the floors into docs/architecture.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from tests.project.house import FLOORS, PACKAGE, ROOT, Floor, inner_imports, part_of

PAGE: Final = ROOT / "docs" / "architecture.md"
_BEGIN: Final = "<!-- drawn by `make architecture` -->"
_END: Final = "<!-- end of what is drawn -->"
# Every part imports the words: those arrows would say nothing.
_DRAWN: Final = FLOORS[1:]


def drawn(page: str) -> str:
    """The page, with its floors as they are in the code.

    Args:
        page: the text, with the two marks between which they are drawn.
    """
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return "\n".join([before + _BEGIN, *_table(), "", *_picture(), _END + after])


def _table() -> Iterator[str]:
    yield "| floor | parts of `idempotent` | what they do |"
    yield "|---|---|---|"
    for floor in reversed(FLOORS):
        parts = " ".join(f"`{_shown(part)}`" for part in floor.parts)
        yield f"| {floor.name} | {parts} | {floor.about} |"


def _picture() -> Iterator[str]:
    yield "```mermaid"
    yield "flowchart TB"
    for floor in reversed(_DRAWN):
        yield f"  {floor.name}_floor[{floor.name}]"
    yield from _arrows(_DRAWN)
    yield "```"


def _arrows(floors: Sequence[Floor]) -> Iterator[str]:
    """With the number of files that import, from the top to the bottom; none where a longer way leads there too."""
    home = {part: floor.name for floor in floors for part in floor.parts}
    files = {
        (found.importer, home[part_of(found.importer)], home[part_of(found.target)])
        for found in inner_imports()
        if home.keys() >= {part_of(found.importer), part_of(found.target)}
    }
    counts = Counter((upper, lower) for _, upper, lower in files if upper != lower)
    names = [floor.name for floor in reversed(floors)]
    below: dict[str, set[str]] = {}  # all that a floor reaches
    for name in reversed(names):
        nearest = {lower for upper, lower in counts if upper == name}
        below[name] = nearest.union(*(below.get(each, ()) for each in nearest))
    for (upper, lower), count in sorted(
        counts.items(), key=lambda arrow: [names.index(name) for name in arrow[0]]
    ):
        if not any((upper, between) in counts and lower in below[between] for between in names):
            yield f"  {upper}_floor-->|{count}|{lower}_floor"


def _shown(part: str) -> str:
    return "__init__" if part == PACKAGE else part


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text()))
