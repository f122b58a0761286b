"""The events that the product logs, read from its source."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from idempotent import Outcome

ROOT: Final = Path(__file__).parents[2]
_FOLDERS: Final = ("idempotent", "adapters", "migrations")
# Links to folders of their own.
_LEFT_OUT: Final = (
    "idempotent/adapters/",
    "idempotent/migrations/",
)
_METHODS: Final = ("debug", "info", "warning", "error", "exception", "log")


@dataclass(frozen=True)
class Logged:
    """One call of a logger."""

    where: str
    level: str | None
    """None: it is chosen when the event is logged."""
    event: str | None
    """None: it is not a constant."""
    fields: frozenset[str]
    """The names in `extra`, and `exception` for a traceback."""


class UnreadableFieldsError(ValueError):
    """The names in an `extra` cannot be read from the source."""


@functools.cache
def logged() -> Sequence[Logged]:
    """Every call of `log.<level>(...)`."""
    return tuple(_calls(dict(_files())))


def _calls(files: Mapping[str, ast.Module]) -> Iterator[Logged]:
    everywhere = _defined(files.values())
    for name, tree in files.items():
        for function in _functions(tree):
            for node in ast.walk(function):
                if _is_log_call(node):
                    chosen = node.func.attr == "log"
                    named = node.args[1 if chosen else 0]
                    event = named.value if isinstance(named, ast.Constant) else None
                    level = None if chosen else "error" if node.func.attr == "exception" else node.func.attr
                    extra = next((word.value for word in node.keywords if word.arg == "extra"), None)
                    fields = (
                        frozenset()
                        if extra is None
                        else _names(extra, function, everywhere | _defined([tree]))
                    )
                    if node.func.attr == "exception" or any(word.arg == "exc_info" for word in node.keywords):
                        fields |= {"exception"}
                    yield Logged(f"{name}:{node.lineno}", level, event, fields)


def _files() -> Iterator[tuple[str, ast.Module]]:
    for folder in _FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(_LEFT_OUT):
                yield name, ast.parse(path.read_text())


def _defined(trees: Iterable[ast.Module]) -> dict[str, ast.FunctionDef]:
    nodes = (node for tree in trees for node in ast.walk(tree))
    return {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The outermost functions, so that each call is seen once."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
        else:
            yield from _functions(node)


def _names(
    extra: ast.expr, function: ast.FunctionDef | ast.AsyncFunctionDef, defined: Mapping[str, ast.FunctionDef]
) -> frozenset[str]:
    """The keys of a dict: a literal, a variable of this function, or what a function of the product returns."""
    match extra:
        case ast.Dict(keys=keys, values=values):
            names: frozenset[str] = frozenset()
            for key, value in zip(keys, values, strict=True):
                names |= (
                    frozenset({key.value})
                    if isinstance(key, ast.Constant)
                    else _names(value, function, defined)
                )
            return names
        case ast.DictComp(key=ast.Attribute(value=ast.Name(id="outcome"), attr="value")):
            return frozenset(outcome.value for outcome in Outcome)
        case ast.Name(id=variable):
            for node in ast.walk(function):
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == variable:
                    return _names(node.value, function, defined)
        case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)):
            if called in defined:
                return _returned(defined[called], defined)
    raise UnreadableFieldsError(ast.unparse(extra))


def _returned(function: ast.FunctionDef, defined: Mapping[str, ast.FunctionDef]) -> frozenset[str]:
    found = [
        node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None
    ]
    return frozenset().union(*(_names(value, function, defined) for value in found))


def _is_log_call(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _METHODS
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "log"
    )
