"""Where things live: the rules of docs/architecture.md, computed from the code."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

from tests.project.house import (
    FLOORS,
    HEIGHT,
    INSTALLED,
    PACKAGE,
    ROOT,
    Import,
    assert_holds,
    files,
    imports_of,
    inner_imports,
    is_below,
    modules,
    name_of,
    part_of,
    product,
    product_imports,
    tree_of,
)

EVERYTHING: Final = (*INSTALLED, "tests", "examples", "docs")
MOST_FILES = 20
MOST_LINES = 500
MOST_ROOT_MODULES = 18
# Pages are read by their names in a list; a folder for three of them would hide them.
FLAT: Final = {"docs", "docs/decisions", "docs/reference"}
# A sentence of this form in a module's docstring lets the file be longer.
EXCUSE: Final = re.compile(r"^Long because .{10,}?\.$", re.MULTILINE | re.DOTALL)
# Packages of adapters/ that are no broker: they bring messages in other ways.
NO_BROKERS: Final = {"django", "faststream", "spark"}
# Each has one file in adapters/, with its name, or a package.
FRAMEWORKS: Final = {"celery", "django", "dramatiq", "faststream", "mcp", "taskiq"}
# Packages beside those of servers, for all of them.
SHARED: Final = {"batching"}
DRIVERS: Final = {
    "MySQLdb",
    "aiomysql",
    "asyncmy",
    "asyncpg",
    "hiredis",
    "psycopg",
    "psycopg2",
    "pymysql",
    "redis",
}


def test_every_part_of_the_package_stands_on_one_floor():
    parts = [part for floor in FLOORS for part in floor.parts]
    assert len(parts) == len(set(parts))
    assert {part_of(module) for module in product()} == set(parts)


def test_imports_only_fall():
    assert_holds(
        found for found in inner_imports() if HEIGHT[part_of(found.target)] > HEIGHT[part_of(found.importer)]
    )


def test_no_modules_import_each_other_in_a_circle():
    assert_holds(circles((found.importer, found.target) for found in inner_imports()))


def test_no_parts_of_the_package_import_each_other_in_a_circle():
    pairs = [(part_of(found.importer), part_of(found.target)) for found in inner_imports()]
    assert_holds(circles(pair for pair in pairs if pair[0] != pair[1]))


@pytest.mark.parametrize("home", ["adapters", "checkers", "stores"])
def test_packages_of_servers_do_not_import_each_other(home):
    siblings = {f"{PACKAGE}.{home}.{name}" for name in packages_in(home)}
    assert_holds(
        found
        for found in inner_imports()
        for mine in siblings
        if is_below(found.importer, mine) and is_below(found.target, *(siblings - {mine}))
    )


def test_imports_inside_the_package_are_absolute_and_of_modules_that_exist():
    known = product()
    assert_holds(found for found in inner_imports() if found.target not in known)
    assert_holds(found for found in product_imports() if found.target == ".")


@pytest.mark.slow
def test_no_folder_is_imported_under_its_top_level_name():
    """Under another name the same file becomes a second module."""
    assert_holds(found for found in all_imports() if found.library in INSTALLED.keys() - {PACKAGE})


def test_the_product_imports_neither_examples_nor_tests():
    assert_holds(found for found in product_imports() if found.library in {"examples", "tests"})


def test_the_library_of_a_client_is_imported_there_and_nowhere_else():
    clients = {
        found.library: found.importer for found in foreign_imports() if found.importer.endswith(".client")
    }
    assert clients.keys() >= {"confluent_kafka", "pika", "redis", "stomp"}
    assert_holds(
        f"{found}, which only {client} may"
        for found in foreign_imports()
        if (client := clients.get(found.library, found.importer)) != found.importer
    )


def test_a_broker_imports_other_libraries_in_its_client_alone():
    assert_holds(
        found
        for found in foreign_imports()
        for package in brokers()
        if is_below(found.importer, package) and found.importer != f"{package}.client"
    )


def test_a_framework_is_imported_under_its_name_alone():
    found = [each for each in foreign_imports() if each.library in FRAMEWORKS]
    assert {each.library for each in found} == FRAMEWORKS
    assert_holds(each for each in found if not is_below(each.importer, f"{PACKAGE}.adapters.{each.library}"))


def test_drivers_of_stores_are_imported_by_the_stores_alone():
    assert_holds(
        found
        for found in foreign_imports()
        if found.library in DRIVERS and part_of(found.importer) != "stores"
    )


def test_events_are_counted_by_observers_alone():
    """What is added to the process-wide counters is missed by a registry with observers of its own."""
    readers = {f"{PACKAGE}.observe", f"{PACKAGE}.observe.prometheus", f"{PACKAGE}.registry"}
    assert_holds(
        f"{module}, line {node.lineno}: imports counters; count with observers"
        for module, path in product().items()
        if module not in readers
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and is_below(str(node.module), f"{PACKAGE}.observe")
        if "counters" in [alias.name for alias in node.names]
    )


def test_a_folder_holds_few_files():
    assert_holds(
        f"{folder} has {len(names)} files, and {MOST_FILES} is the most"
        for folder, names in folders().items()
        if len(names) > MOST_FILES
    )


def test_the_third_file_with_a_prefix_makes_a_package():
    for folder, names in folders().items():
        stems = [name.partition(".")[0].removeprefix("test_") for name in names if not name.startswith("_")]
        prefixes = Counter(stem.partition("_")[0] for stem in stems)
        assert_holds(f"{folder}/{prefix}_*: {count}" for prefix, count in prefixes.items() if count > 2)


def test_the_root_of_the_core_has_few_modules():
    here = {path.name for path in (ROOT / PACKAGE).glob("*.py")} - {"__init__.py"}
    assert len(here) <= MOST_ROOT_MODULES, sorted(here)


def test_a_file_is_short_or_says_why_not():
    """A docstring says it in a sentence that begins a line: `Long because it is one table.`"""
    sources = [path for path in files(*EVERYTHING) if path.suffix in {".py", ".lua"}]
    lengths = {path: path.read_text().count("\n") for path in sources}
    assert_holds(
        f"{name_of(path)} has {lines} lines: split it, or say `Long because ...` in its docstring"
        for path, lines in lengths.items()
        if lines > MOST_LINES and not is_excused(path)
    )


def test_every_folder_with_python_files_is_a_package():
    here = {path.parent for path in files(*INSTALLED, "tests") if path.suffix == ".py"}
    assert_holds(name_of(folder) for folder in here if not (folder / "__init__.py").exists())


def test_every_broker_has_the_same_files():
    """One in this process, or a file, has no client and no settings of one: it imports no library."""
    for package in brokers():
        talks = any(is_below(found.importer, package) for found in foreign_imports())
        expected = {"adapter", "client", "options"} if talks else {"adapter"}
        assert_holds(
            f"{package}.{name} is missing" for name in expected if f"{package}.{name}" not in product()
        )


def test_every_server_has_the_same_file_for_its_checker():
    expected = [f"{PACKAGE}.checkers.{server}.checker" for server in packages_in("checkers")]
    assert_holds(f"{module} is missing" for module in expected if module not in product())


def circles(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Circles of importers and what they import: enough of them to break up all."""
    graph: dict[str, set[str]] = defaultdict(set)
    for importer, target in pairs:
        graph[importer].add(target)
    found = []
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            target, importer, *_ = circle = error.args[1]
            found.append(" is imported by ".join(circle))
            graph[importer].remove(target)
        else:
            return found


def all_imports() -> list[Import]:
    return [found for name, path in modules(*EVERYTHING).items() for found in imports_of(path, name)]


def foreign_imports() -> list[Import]:
    return [
        found
        for found in product_imports()
        if found.library not in {PACKAGE, "."} and found.library not in sys.stdlib_module_names
    ]


def packages_in(part: str) -> set[str]:
    """The names of the packages of servers right below a part."""
    home = f"{PACKAGE}.{part}."
    return {
        name.removeprefix(home)
        for name, path in product().items()
        if path.name == "__init__.py" and name.startswith(home) and "." not in name.removeprefix(home)
    } - SHARED


def brokers() -> set[str]:
    return {f"{PACKAGE}.adapters.{name}" for name in packages_in("adapters") - NO_BROKERS}


def folders() -> dict[str, list[str]]:
    found = defaultdict(list)
    for path in files(*EVERYTHING):
        if (folder := name_of(path.parent)) not in FLAT:
            found[folder].append(path.name)
    return found


def is_excused(path: Path) -> bool:
    return EXCUSE.search(ast.get_docstring(tree_of(path)) or "") is not None
