"""The events that the product logs, read from its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_FOLDERS: Final = ("idempotent", "adapters", "migrations")
# Programs beside the product, and links to folders of their own.
_LEFT_OUT: Final = (
    "idempotent/demo/",
    "idempotent/torture/",
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


def logged() -> Iterator[Logged]:
    """Every call of `log.<level>(...)`."""
    for folder in _FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name.startswith(_LEFT_OUT):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if _is_log_call(node):
                    chosen = node.func.attr == "log"
                    named = node.args[1 if chosen else 0]
                    event = named.value if isinstance(named, ast.Constant) else None
                    level = None if chosen else "error" if node.func.attr == "exception" else node.func.attr
                    yield Logged(f"{name}:{node.lineno}", level, event)


def _is_log_call(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _METHODS
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "log"
    )
