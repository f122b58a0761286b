"""Crash points: kill or pause this process at a named step, to test what happens next.

Production code knows nothing about them: `crash_points` adds them to a checker, `AckPoints` to a worker's settlements,
`around` to any function. `abandon_claim` leaves a message as a killed process does, and kills none.
"""

from __future__ import annotations

import functools
import inspect
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, ParamSpec, TypeVar, cast

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.hooks import CheckerHooks
from idempotent.claims import Claim, ClaimRequest, Completion, Decision, Failure, Guarantee, Released
from idempotent.consumer import AnyConsumer
from idempotent.errors import ConfigurationError
from idempotent.forks import free_in_child
from idempotent.message import Message
from idempotent.observe.observers import Observer
from idempotent.outcomes import Result

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
    """SIGSTOP: the process stalls until it gets SIGCONT."""


@dataclass(frozen=True, slots=True)
class CrashPlan:
    """Where this process dies.

    Attributes:
        point: `before_` or `after_` and a step: claim, effect, complete, release, renew, commit, ack; in a Spark
            run: begin, claim, prepare, publish, commit.
        nth: the number of the passing at which it dies, from 1.
        kind: die, or pause.
    """

    point: str
    nth: int = 1
    kind: CrashKind = CrashKind.KILL

    def __post_init__(self) -> None:
        """Check the point and the number.

        Raises:
            ConfigurationError: an unknown point, or a number below 1.
        """
        if self.point not in POINTS:
            raise ConfigurationError(
                f"unknown crash point {self.point!r}; known: {', '.join(sorted(POINTS))}"
            )
        if self.nth < 1:
            raise ConfigurationError(f"the number of the passing must be at least 1, not {self.nth}")

    @classmethod
    def parse(cls, text: str) -> CrashPlan:
        """Read `after_claim`, `after_claim:17` (the 17th time), `pause:after_effect`, `pause:after_effect:17`.

        Raises:
            ConfigurationError: the text has another form.
        """
        words = text.split(":")
        kind = CrashKind.KILL
        if words[0] in ("kill", "pause"):
            kind = CrashKind(words.pop(0))
        point, nth = (words + ["", "1"][len(words) :])[:2] if len(words) in (1, 2) else ("", "1")
        if not nth.isdecimal():
            raise ConfigurationError(
                f"{text!r}: the number of the passing must follow the point, not {nth!r}"
            )
        return cls(point, int(nth), kind)

    @classmethod
    def from_environment(cls) -> CrashPlan | None:
        """The plan in `IDEMPOTENT_CRASH_AT`; None when it is not set.

        Raises:
            ConfigurationError: the variable has another form.
        """
        text = os.environ.get(CRASH_VARIABLE)
        return cls.parse(text) if text else None


class _Passings:
    """How often each point was passed in this process."""

    def __init__(self) -> None:
        self._lock = free_in_child(threading.Lock())
        self._counts: Counter[str] = Counter()

    def count(self, point: str) -> int:
        with self._lock:
            self._counts[point] += 1
            return self._counts[point]

    def forget(self) -> None:
        with self._lock:
            self._counts.clear()


class _Armed:
    """The plan of this process: that of the environment, until `arm` gives another one.

    `arm` does not write into the environment: the C library reads it without a lock, for instance when another thread
    looks up the address of a server, and that ends the process with a segmentation fault.
    """

    def __init__(self) -> None:
        self._is_given = False
        self._plan: CrashPlan | None = None

    def give(self, plan: CrashPlan | None) -> None:
        self._plan, self._is_given = plan, True

    @property
    def plan(self) -> CrashPlan | None:
        return self._plan if self._is_given else CrashPlan.from_environment()


# Of a context, not of a thread: the tasks of one loop complete in turns.
_commits_completion: Final[ContextVar[bool]] = ContextVar("idempotent_commits_completion", default=False)
_passings: Final = _Passings()
_armed: Final = _Armed()


def reach(point: str, plan: CrashPlan | None = None) -> None:
    """Pass a point, and die there if the plan (by default that of `arm`, or the environment's) says so.

    Raises:
        ConfigurationError: an unknown point, or an invalid plan in the environment.
    """
    plan = plan or _armed.plan
    if point not in POINTS:
        raise ConfigurationError(f"unknown crash point {point!r}; known: {', '.join(sorted(POINTS))}")
    if plan is None or plan.point != point or _passings.count(point) != plan.nth:
        return
    os.write(2, f"{plan.kind.value} at {point}\n".encode())  # the buffer of print() would be lost
    # To this thread: the process would end, or stop, a moment later.
    signal.pthread_kill(
        threading.get_ident(), signal.SIGKILL if plan.kind is CrashKind.KILL else signal.SIGSTOP
    )


def arm(plan: CrashPlan | None) -> None:
    """Set the plan of the running process, in place of the environment's; passings count from now. None: no plan."""
    _passings.forget()
    _armed.give(plan)


def around(function: Callable[P, T], step: str, plan: CrashPlan | None = None) -> Callable[P, T]:
    """The function, or `async def`, between `before_<step>` and `after_<step>`: a handler is an "effect".

    A Spark run has methods for its steps; the one that makes its output visible is "publish".
    """
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            with _between(step, plan):
                return await function(*args, **kwargs)

        return cast("Callable[P, T]", awaited)

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        with _between(step, plan):
            return function(*args, **kwargs)

    return wrapped


@contextmanager
def _between(step: str, plan: CrashPlan | None) -> Iterator[None]:
    reach(f"before_{step}", plan)
    yield
    reach(f"after_{step}", plan)


class AckPoints(Observer):
    """Add it to a registry's observers: a worker settles each delivery between `before_ack` and `after_ack`."""

    def settling(self, message: Message, result: Result) -> None:
        del message, result
        reach("before_ack")

    def settled(self, message: Message, result: Result) -> None:
        del message, result
        reach("after_ack")


def crash_points(checker: C, plan: CrashPlan | None = None) -> C:
    """Put crash points around the steps of one checker: claim, complete, release, renew, and (SQL) commit.

    A batch passes a point once.

    Args:
        checker: changed in place, at its protocol, and returned.
        plan: where to die; None: the environment's plan, read at each point.
    """
    checker.protocol.hooks = _HooksWithPoints(checker.protocol.hooks, plan)
    engine = getattr(getattr(checker, "store", None), "engine", None)
    if engine is not None:
        _around_commit(engine.dialect, plan)
    return checker


class _HooksWithPoints(CheckerHooks):
    """A checker's hooks, each between the points of its step. The hooks that they call themselves pass none."""

    def __init__(self, hooks: CheckerHooks, plan: CrashPlan | None) -> None:
        self.lease_s = hooks.lease_s
        self.retention_s = hooks.retention_s
        self.dead_retention_s = hooks.dead_retention_s
        self.group_is_atomic = hooks.group_is_atomic
        self.remembers = hooks.remembers
        self._hooks = hooks
        self._plan = plan

    def _claim(self, request: ClaimRequest) -> Decision:
        return around(self._hooks._claim, "claim", self._plan)(request)

    def _claim_many(self, requests: Sequence[ClaimRequest]) -> list[Decision]:
        return around(self._hooks._claim_many, "claim", self._plan)(requests)

    def _complete(self, completion: Completion) -> bool:
        with _completing():
            return around(self._hooks._complete, "complete", self._plan)(completion)

    def _complete_many(self, completions: Sequence[Completion]) -> list[bool]:
        with _completing():
            return around(self._hooks._complete_many, "complete", self._plan)(completions)

    def _release(self, claim: Claim, failure: Failure | None) -> Released:
        return around(self._hooks._release, "release", self._plan)(claim, failure)

    def _release_many(self, releases: Sequence[tuple[Claim, Failure | None]]) -> list[Released]:
        return around(self._hooks._release_many, "release", self._plan)(releases)

    def _renew_many(self, claims: Sequence[Claim]) -> list[bool]:
        return around(self._hooks._renew_many, "renew", self._plan)(claims)

    def _garbage_collect(self, limit: int) -> int:
        return self._hooks._garbage_collect(limit)


@contextmanager
def _completing() -> Iterator[None]:
    before = _commits_completion.get()
    try:
        _commits_completion.set(True)
        yield
    finally:
        _commits_completion.set(before)


def _around_commit(dialect: Any, plan: CrashPlan | None) -> None:
    """Points around the COMMIT of a completion; the application's own commits pass none.

    SQLAlchemy has an event before a COMMIT, but none after it.
    """
    commit = dialect.do_commit
    commit_with_points = around(commit, "commit", plan)

    def do_commit(connection: Any) -> None:
        (commit_with_points if _commits_completion.get() else commit)(connection)

    dialect.do_commit = do_commit


def abandon_claim(consumer: AnyConsumer, message: Message) -> Claim:
    """Claim a message's key and leave it so, as a process that dies in its handler: nothing renews or ends the claim.

    The handler does not run. Until the lease has ended, deliveries are `IN_PROGRESS`; the first one after it does what
    the consumer's `on_expired_lease` says. Give a `MemoryChecker` a `clock`, and put it forward. For another store,
    override the checker during this call with one whose `lease_s` is short, and wait.

    Args:
        consumer: whose checker has leases, or claims that never lapse.
        message: its key is free, or has a lapsed lease, which is a death.

    Returns:
        the claim, with the key and the fence that the dead process could have sent to others.

    Raises:
        ConfigurationError: the checker is transactional: the database frees the key of a process that dies.
        ValueError: the key is done, dead or claimed.
        MessageError: the message has no key.
        StoreError: the store did not answer.
    """
    binding = consumer.binding
    if binding.checker.guarantee is Guarantee.TRANSACTIONAL:
        raise ConfigurationError(
            f"{type(binding.checker).__name__} has no leases: a process that dies leaves no claim behind, and the next "
            "delivery runs"
        )
    request = binding.requests.after_a_death(binding.requests.of(message))
    decision = binding.protocol.claim(request)
    if decision.claim is None:
        raise ValueError(f"the key {request.key} is {decision.verdict.value}, so no delivery can claim it")
    binding.protocol.abandon(decision.claim)
    return decision.claim
