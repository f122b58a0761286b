"""Functions that answer in the place of a checker's hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.errors import StoreUnavailableError


class _Answers:
    """Has the given hooks, and everything else of the checker."""

    def __init__(self, hooks: Any, answers: dict[str, Callable[..., Any]]) -> None:
        self._hooks = hooks
        vars(self).update(answers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hooks, name)


@contextmanager
def answering(checker: AbstractIdempotentChecker, **answers: Callable[..., Any]) -> Iterator[None]:
    """The checker's protocol calls these functions instead of the hooks of their names, until the block ends."""
    unknown = [name for name in answers if not hasattr(checker, name)]
    assert not unknown, f"{type(checker).__name__} has no hook {unknown}"
    hooks: Any = checker.protocol.hooks
    checker.protocol.hooks = _Answers(hooks, answers)  # type: ignore[assignment]  # it has every hook
    try:
        yield
    finally:
        checker.protocol.hooks = hooks


def unreachable(*_: object) -> None:
    """A hook of a store that does not answer."""
    raise StoreUnavailableError("gone")
