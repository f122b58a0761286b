"""The floors of the house, its files, and who imports whom: for the tests, and for docs/architecture.md."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = "idempotent"
# Where a top-level folder of the repository is found once it is installed.
INSTALLED: Final = {
    "idempotent": "idempotent",
    "adapters": "idempotent/adapters",
    "migrations": "idempotent/migrations",
}
_NOT_OURS: Final = {"__pycache__", "build", "dist", "htmlcov"}


@dataclass(frozen=True, slots=True)
class Floor:
    """Parts of the package that stand side by side: they import what is below them, and one another without a circle.

    Args:
        name: of the floor, as the picture shows it.
        parts: modules and packages right below `idempotent`; `idempotent` itself is its `__init__`.
        about: what they do, in a sentence.
    """

    name: str
    parts: tuple[str, ...]
    about: str


# From the bottom to the top.
FLOORS: Final = (
    Floor(
        "words",
        (
            "admin",
            "validation",
            "claims",
            "codecs",
            "errors",
            "forks",
            "keys",
            "logs",
            "message",
            "outcomes",
            "policy",
            "schema",
            "values",
        ),
        "The values that all others pass to each other, and the errors.",
    ),
    Floor("observe", ("observe",), "Counts what happens to messages and exports the counters."),
    Floor("stores", ("stores", "migrations"), "Speak to a server and make its tables; know no claim."),
    Floor("checkers", ("checkers",), "Claim, complete and release keys in a store."),
    Floor("processing", ("processing",), "Takes one message, or a group, through one checker."),
    Floor("face", ("consumer", "registry", "block", "function"), "What a user decorates a handler with."),
    Floor("adapters", ("adapters",), "One broker's client each, behind one face; and Spark."),
    Floor(
        "worker",
        ("worker", "redrive", "outbox"),
        "Move messages from an adapter through the consumers, and back; and from a database to a broker.",
    ),
    Floor("package", (PACKAGE,), "The public names; imported by what is above it and by users."),
    Floor("views", ("views",), "What people see of keys and letters, for the command line and the console."),
    Floor("testing", ("testing",), "Contracts, crash points and proxies that users may run too."),
    Floor(
        "cli", ("cli", "console", "__main__"), "The commands of the product, and the console in a browser."
    ),
)
HEIGHT: Final[Mapping[str, int]] = {
    part: height for height, floor in enumerate(FLOORS) for part in floor.parts
}


@dataclass(frozen=True, slots=True, order=True)
class Import:
    """One import: at the top of a file, in a function, or for type checkers only."""

    importer: str
    line: int
    target: str

    def __str__(self) -> str:
        return f"{self.importer}, line {self.line}: imports {self.target}"

    @property
    def library(self) -> str:
        """The top-level name: `idempotent`, or the library that is imported."""
        return self.target.partition(".")[0]


def files(*tops: str) -> Iterator[Path]:
    """Every file below folders of the repository, but for links, hidden folders and what a build leaves."""
    for top in tops:
        for folder, subfolders, names in os.walk(ROOT / top):
            here = Path(folder)
            subfolders[:] = sorted(
                name
                for name in subfolders
                if not (here / name).is_symlink() and name not in _NOT_OURS and not name.startswith(".")
            )
            yield from (here / name for name in sorted(names))


def name_of(path: Path) -> str:
    """The path within the repository."""
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    """The parsed file."""
    return ast.parse(path.read_text())


@cache
def modules(*tops: str) -> Mapping[str, Path]:
    """Dotted names of the Python files below folders of the repository, as they are imported."""
    found = {}
    for path in files(*tops):
        if path.suffix == ".py":
            top, *rest = path.relative_to(ROOT).with_suffix("").parts
            parts = [*INSTALLED.get(top, top).split("/"), *rest]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def product() -> Mapping[str, Path]:
    """The modules that a wheel has."""
    return modules(*INSTALLED)


@cache
def imports_of(path: Path, importer: str) -> tuple[Import, ...]:
    """The imports of one file, wherever in it; names of our own modules are resolved to the module."""
    known = product()
    found = []
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.Import(names=names):
                targets = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), names=names, level=0):
                # `from package import module` imports the module, `from module import name` imports the module too.
                longer = [f"{module}.{alias.name}" for alias in names]
                targets = sorted({name if name in known else module for name in longer})
            case ast.ImportFrom():
                targets = ["."]
            case _:
                continue
        found += [Import(importer, node.lineno, target) for target in targets]
    return tuple(found)


@cache
def product_imports() -> tuple[Import, ...]:
    """The imports of the product, of other libraries too."""
    return tuple(found for name, path in product().items() for found in imports_of(path, name))


def inner_imports() -> Iterator[Import]:
    """The imports of the product from the product."""
    return (found for found in product_imports() if found.library == PACKAGE)


def part_of(module: str) -> str:
    """The part of the package that a module belongs to: the name after `idempotent`, which is a part itself."""
    return ".".join(module.split(".")[1:2]) or PACKAGE


def is_below(module: str, *packages: str) -> bool:
    """Whether a module is one of the packages or in one of them."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def assert_holds(violations: Iterable[object]) -> None:
    """Fail with a line for each violation of a rule."""
    found = [str(violation) for violation in violations]
    assert not found, "\n".join(["this rule of docs/architecture.md is broken:", *found])
