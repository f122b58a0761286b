"""Behaviour is changed through a seam: nothing replaces an attribute of an object that is ours."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.project.house import INSTALLED, PACKAGE, ROOT, assert_holds, files, is_below, name_of, tree_of

# Where an attribute of one of our own objects has to be replaced, and why: (file, object) -> reason.
PATCHED: Final[Mapping[tuple[str, str], str]] = {
    ("idempotent/testing/checker_contract/base.py", "cls"): "the suite takes tests out of the class it makes",
    ("idempotent/testing/checker_contract/base.py", "test"): "marks a test function, as pytest's marks do",
    ("idempotent/stores/sql/detached.py", "engine"): "SQLAlchemy's: an event must not slow its statements",
    ("tests/torture/faults/kinds.py", "kind"): "an enum gives its member a value so",
    ("tests/adapters/activemq/member.py", "transport"): "reads the frames that stomp.py writes",
    (
        "tests/adapters/activemq/test_outcomes.py",
        "type(consumer)",
    ): "gives the worker a result of our choice",
    (
        "tests/adapters/kafka/transactions/test_failing.py",
        "Transactions",
    ): "the adapter makes it, with its group",
    (
        "tests/adapters/kafka/transactions/test_transactions.py",
        "adapter._group._commits",
    ): "made with the group",
    ("tests/adapters/rabbitmq/test_working.py", "Session"): "the adapter makes one for each connection",
    (
        "tests/adapters/spark/ledger/test_round_trips.py",
        "path",
    ): "counts statements, which pass no object of ours",
    ("tests/adapters/spark/ledger/test_round_trips.py", "RedisStore"): "counts commands",
    (
        "tests/checkers/sql/test_offsets.py",
        "HandlerTransaction",
    ): "COMMIT fails: the checker makes an object for each transaction",
    (
        "tests/guarantees/test_known_bugs.py",
        "HandlerTransaction",
    ): "COMMIT fails: the checker makes an object for each transaction",
    (
        "tests/guarantees/test_nothing_stays_open.py",
        "ExceptionPolicy",
    ): "a bug of ours, between handler and store",
    (
        "tests/processing/test_failing_store.py",
        "HandlerTransaction",
    ): "COMMIT fails: the checker makes an object for each transaction",
    ("tests/processing/test_round_trips.py", "module"): "counts statements, which pass no object of ours",
}


def test_the_product_replaces_no_attribute_of_its_own_objects():
    assert_holds(patch for path in files(*INSTALLED) if path.suffix == ".py" for patch in patches(path))


def test_the_tests_replace_no_attribute_of_our_own_objects_but_constants():
    """A constant is data: a test may shorten a wait. A method to replace is a seam that is missing."""
    assert_holds(
        patch for path in files("tests", "examples") if path.suffix == ".py" for patch in patches(path)
    )


def patches(path: Path) -> Iterator[str]:
    """Where a file replaces an attribute of an object that is ours, and the list does not allow it."""
    tree = tree_of(path)
    foreign = names_of_foreign_modules(path)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name("setattr") | ast.Attribute(attr="setattr"), args=[target, *rest]):
                text, attribute = described(target, rest)
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(owner), attr=attribute)]) if owner not in {
                "self",
                "cls",
            } and re.match(r"_(?!_)", attribute):
                text = owner
            case _:
                continue
        is_constant = path.is_relative_to(ROOT / "tests") and re.fullmatch(r"_?[A-Z][A-Z0-9_]*", attribute)
        if not is_constant and text.partition(".")[0] not in foreign and (name_of(path), text) not in PATCHED:
            yield f"{name_of(path)}, line {node.lineno}: {text}.{attribute}"


def described(target: ast.expr, rest: list[ast.expr]) -> tuple[str, str]:
    """Object and attribute of a call of setattr, in both of the forms that pytest has."""
    match target, rest:
        case ast.Constant(value=str(path)), [_]:
            owner, _, attribute = path.rpartition(".")
            return owner, attribute
        case _, [ast.Constant(value=str(attribute)), *_]:
            return ast.unparse(target), attribute
        case _:
            return ast.unparse(target), "?"


def names_of_foreign_modules(path: Path) -> set[str]:
    """What other libraries' objects are called in a file."""
    names = set()
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.Import(names=aliases):
                origins = [(alias.name, alias.asname or alias.name.partition(".")[0]) for alias in aliases]
            case ast.ImportFrom(module=str(module), names=aliases):
                origins = [(module, alias.asname or alias.name) for alias in aliases]
            case _:
                continue
        names |= {name for origin, name in origins if not is_below(origin, PACKAGE, "tests")}
    return names
