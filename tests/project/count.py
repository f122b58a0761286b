"""`python -m tests.project.count`: how large the product is, beside what it should be.

`--names` also lists the small files, the modules with one importer and the longest chains of imports.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Final

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from tests.project.house import PACKAGE, inner_imports, is_below, product

SMALL_LINES: Final = 50
MOST_LINES: Final = 32_000
MOST_FILES: Final = 260
MOST_SMALL: Final = 15
MOST_SINGLE: Final = 60
# The longest chain of imports inside a package.
MOST_DEEP: Final[Mapping[str, int]] = {f"{PACKAGE}.checkers.sql": 6, f"{PACKAGE}.processing": 4}


def lines() -> dict[str, int]:
    """How many lines each module of the wheel has."""
    return {name: path.read_text().count("\n") for name, path in product().items()}


def leaves() -> list[str]:
    """The modules of the wheel without the `__init__` of packages."""
    return [name for name, path in product().items() if path.name != "__init__.py"]


def small_files() -> list[str]:
    """The modules that may be too small for a file of their own."""
    counted = lines()
    return [name for name in leaves() if counted[name] <= SMALL_LINES]


def single_importers() -> dict[str, str]:
    """The modules that only one other module imports, and which."""
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for found in inner_imports():
        importers[found.target].add(found.importer)
    return {name: next(iter(importers[name])) for name in leaves() if len(importers[name]) == 1}


def longest_chain(pairs: Iterable[tuple[str, str]]) -> Sequence[str]:
    """The longest way through a graph without circles, each module imported by the one before it.

    Args:
        pairs: importers and what they import.
    """
    below: defaultdict[str, list[str]] = defaultdict(list)
    for importer, target in sorted(set(pairs)):
        below[importer].append(target)

    @cache
    def from_here(module: str) -> tuple[str, ...]:
        return (module, *max((from_here(target) for target in below.get(module, ())), key=len, default=()))

    return max(map(from_here, sorted(below)), key=len, default=())


def chain_inside(package: str) -> Sequence[str]:
    """The longest chain of imports in a package, below its `__init__`; its length is the number of its floors."""
    inside = {name for name in product() if is_below(name, package) and name != package}
    return longest_chain(
        (found.importer, found.target)
        for found in inner_imports()
        if found.importer in inside and found.target in inside
    )


def rows() -> Iterator[tuple[str, int, int]]:
    """What is counted, how much there is now, and how much there should be at most."""
    counted = lines()
    yield "lines of Python in the wheel", sum(counted.values()), MOST_LINES
    yield "files", len(counted), MOST_FILES
    yield f"files of {SMALL_LINES} lines or fewer, __init__.py aside", len(small_files()), MOST_SMALL
    yield f"modules with one importer, of {len(leaves())}", len(single_importers()), MOST_SINGLE
    for package, most in MOST_DEEP.items():
        yield f"floors of {package}", len(chain_inside(package)), most


def names() -> Iterator[str]:
    """The modules behind the numbers, a line each."""
    counted = lines()
    yield f"files of {SMALL_LINES} lines or fewer:"
    yield from (f"  {counted[name]:3} {name}" for name in sorted(small_files(), key=counted.__getitem__))
    yield "modules with one importer, and which:"
    yield from (f"  {name} <- {importer}" for name, importer in sorted(single_importers().items()))
    for package in MOST_DEEP:
        yield f"floors of {package}, from the top:"
        yield from (f"  {name}" for name in chain_inside(package))


def main(
    with_names: Annotated[
        bool, typer.Option("--names", help="Also list the files, modules and floors behind the numbers.")
    ] = False,
) -> None:
    """Count lines, files, importers and floors of what the wheel has, beside the most that there should be.

    Example: python -m tests.project.count --names
    """
    table = Table("", "now", "most", box=box.SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    for what, now, most in rows():
        table.add_row(what, f"{now:,}", f"{most:,}", style="" if now <= most else "yellow")
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    if with_names:
        console.print("\n".join(names()))


if __name__ == "__main__":
    typer.run(main)
