"""Crash points: kill or pause this process at a named step, to see what the next one makes of it.

Production code knows nothing of them: `crash_points` wraps the hooks of one checker, `around` any function.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, ParamSpec, TypeVar

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.errors import ConfigurationError

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=AbstractIdempotentChecker)

CRASH_VARIABLE: Final = "IDEMPOTENT_CRASH_AT"
STEPS: Final = (
    "ack",
    "begin",
    "claim",
    "commit",
    "complete",
    "effect",
    "prepare",
    "publish",
    "release",
    "renew",
)
POINTS: Final = frozenset(f"{when}_{step}" for when in ("before", "after") for step in STEPS)


class CrashKind(Enum):
    """What happens at the point."""

    KILL = "kill"
    """SIGKILL: nothing is cleaned up."""
    PAUSE = "pause"
    """SIGSTOP: the process stalls until somebody sends it SIGCONT."""


@dataclass(frozen=True, slots=True)
class CrashPlan:
    """Where this process dies.

    Attributes:
        point: `before_` or `after_` and a step: claim, effect, complete, release, renew, commit, ack; of a run of
            Spark: begin, claim, prepare, publish, commit.
        nth: at which passing of the point, from 1.
        kind: die, or pause.
    """

    point: str
    nth: int = 1
    kind: CrashKind = CrashKind.KILL

    def __post_init__(self) -> None:
        """Check the words.

        Raises:
            ConfigurationError: an unknown point, or a number below 1.
        """
        if self.point not in POINTS:
            raise ConfigurationError(f"no crash point {self.point!r}; known: {', '.join(sorted(POINTS))}")
        if self.nth < 1:
            raise ConfigurationError(f"a crash point is passed at least once, not {self.nth} times")

    @classmethod
    def parse(cls, text: str) -> CrashPlan:
        """Read `after_claim`, `after_claim:17` (the 17th time), `pause:after_effect`, `pause:after_effect:17`.

        Raises:
            ConfigurationError: anything else.
        """
        words = text.split(":")
        kind = CrashKind.KILL
        if words[0] in ("kill", "pause"):
            kind = CrashKind(words.pop(0))
        point, nth = (words + ["", "1"][len(words) :])[:2] if len(words) in (1, 2) else ("", "1")
        if not nth.isdecimal():
            raise ConfigurationError(f"{text!r}: after the point comes how often it is passed, not {nth!r}")
        return cls(point, int(nth), kind)

    @classmethod
    def from_environment(cls) -> CrashPlan | None:
        """What `IDEMPOTENT_CRASH_AT` says; None when it says nothing.

        Raises:
            ConfigurationError: it makes no sense.
        """
        text = os.environ.get(CRASH_VARIABLE)
        return cls.parse(text) if text else None


class _Passings:
    """How often each point was passed in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def count(self, point: str) -> int:
        with self._lock:
            self._counts[point] += 1
            return self._counts[point]

    def forget(self) -> None:
        with self._lock:
            self._counts.clear()


_passings: Final = _Passings()


def reach(point: str, plan: CrashPlan | None = None) -> None:
    """Pass a point, and die there if the plan (by default the environment's) says so.

    Raises:
        ConfigurationError: no such point, or an environment that makes no sense.
    """
    plan = plan or CrashPlan.from_environment()
    if point not in POINTS:
        raise ConfigurationError(f"no crash point {point!r}; known: {', '.join(sorted(POINTS))}")
    if plan is None or plan.point != point or _passings.count(point) != plan.nth:
        return
    # Not print(): what is buffered dies with the process.
    os.write(2, f"{plan.kind.value} at {point}\n".encode())
    os.kill(os.getpid(), signal.SIGKILL if plan.kind is CrashKind.KILL else signal.SIGSTOP)


def arm(plan: CrashPlan | None) -> None:
    """Say where this process dies while it runs: as if it stood in the environment, counted from now. None: nowhere."""
    _passings.forget()
    if plan is None:
        os.environ.pop(CRASH_VARIABLE, None)
    else:
        os.environ[CRASH_VARIABLE] = f"{plan.kind.value}:{plan.point}:{plan.nth}"


def around(function: Callable[P, T], step: str, plan: CrashPlan | None = None) -> Callable[P, T]:
    """The function between `before_<step>` and `after_<step>`: a handler ("effect"), an adapter's settle ("ack").

    A run of Spark has its own methods for its steps; what makes its output visible is "publish".
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        reach(f"before_{step}", plan)
        answer = function(*args, **kwargs)
        reach(f"after_{step}", plan)
        return answer

    return wrapped


def crash_points(checker: C, plan: CrashPlan | None = None) -> C:
    """Put crash points around what this one checker does: claim, complete, release, renew, and (SQL) commit.

    A batch passes a point once.

    Args:
        checker: changed in place, and returned.
        plan: where to die; None: what the environment says at each point.
    """
    target: Any = checker
    committing = threading.local()
    for step in ("claim", "complete", "release", "renew"):
        nested = threading.local()
        for hook in (f"_{step}", f"_{step}_many"):
            if hasattr(target, hook):
                setattr(target, hook, _outermost(getattr(target, hook), step, nested, committing, plan))
    engine = getattr(getattr(checker, "store", None), "engine", None)
    if engine is not None:
        _around_commit(engine.dialect, committing, plan)
    return checker


def _outermost(
    hook: Callable[P, T],
    step: str,
    nested: threading.local,
    committing: threading.local,
    plan: CrashPlan | None,
) -> Callable[P, T]:
    """The hook with its points, unless another hook of the same step calls it."""
    with_points = around(hook, step, plan)

    @functools.wraps(hook)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        if getattr(nested, "on", False):
            return hook(*args, **kwargs)
        with _on(nested), _on(committing, when=step == "complete"):
            return with_points(*args, **kwargs)

    return wrapped


def _around_commit(dialect: Any, committing: threading.local, plan: CrashPlan | None) -> None:
    """Points around the COMMIT of a completion; the application's own commits pass none."""
    commit = dialect.do_commit

    def do_commit(connection: Any) -> None:
        if getattr(committing, "on", False):
            around(commit, "commit", plan)(connection)
        else:
            commit(connection)

    dialect.do_commit = do_commit


@contextmanager
def _on(flag: threading.local, *, when: bool = True) -> Iterator[None]:
    before = getattr(flag, "on", False)
    flag.on = before or when
    try:
        yield
    finally:
        flag.on = before
