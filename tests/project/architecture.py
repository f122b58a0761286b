"""`python -m tests.project.architecture` (or `make architecture`): draw the floors into docs/architecture.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from tests.project.house import FLOORS, HEIGHT, PACKAGE, ROOT, Floor, inner_imports, part_of

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
        yield f'  subgraph {floor.name}_floor["{floor.name}"]'
        yield "    direction LR"
        yield from (f'    {part}_part["{_shown(part)}"]' for part in floor.parts)
        yield "  end"
    yield from _arrows(_DRAWN)
    yield "```"


def _arrows(floors: Iterable[Floor]) -> Iterator[str]:
    """One for each pair of parts, with the number of files that import; from the top to the bottom."""
    parts = {part for floor in floors for part in floor.parts}
    pairs = {(found.importer, part_of(found.target)) for found in inner_imports()}
    counts = Counter((part_of(importer), target) for importer, target in pairs)
    shown = [(pair, count) for pair, count in counts.items() if pair[0] != pair[1] and parts.issuperset(pair)]
    for (importer, target), count in sorted(shown, key=lambda arrow: (-HEIGHT[arrow[0][0]], arrow[0])):
        yield f"  {importer}_part -->|{count}| {target}_part"


def _shown(part: str) -> str:
    return "__init__" if part == PACKAGE else part


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text()))
