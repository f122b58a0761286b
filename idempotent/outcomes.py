"""Outcome and Action: the result of one delivery, and what the adapter must do with the delivery."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic

from idempotent.errors import DeadKeyError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # The default lets `Result` stand without brackets in an annotation.
    T_co = TypeVar("T_co", default=Any, covariant=True)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)


class Action(Enum):
    """What the adapter must do with the delivery."""

    ACK = "ack"
    """Acknowledge it: the store has recorded the final result."""
    HOLD = "hold"
    """Keep it unacknowledged for `retry_after_s`, then check the key again."""
    DELAY = "delay"
    """Deliver it again after `retry_after_s`."""
    DEAD_LETTER = "dead_letter"
    """Publish a confirmed copy to the dead-letter target, then acknowledge."""


# For every message: Python 3.11 takes as long to look up an enum's member as to create a small object.
ACK: Final = Action.ACK
HOLD: Final = Action.HOLD


class Outcome(Enum):
    """The result of one delivery."""

    # By identity, like equality: Enum's own hash takes longer than all other work of counting an outcome.
    __hash__ = object.__hash__

    PROCESSED = "processed"
    """The handler ran and its effect is recorded."""
    DUPLICATE = "duplicate"
    """The message was processed before; the handler did not run."""
    IGNORED = "ignored"
    """The handler raised an exception that the consumer declares harmless."""
    FAILED = "failed"
    """The handler raised; the message will be delivered again, and nobody claims its key before the backoff is over."""
    IN_PROGRESS = "in_progress"
    """Another delivery owns the key, or its handler failed and its backoff is not over."""
    UNAVAILABLE = "unavailable"
    """The store did not answer: the state of the key is unknown, and the delivery must not be acknowledged."""
    DEAD = "dead"
    """Attempts used up, an exception that is not retried, or an effect that is unknown."""
    REJECTED = "rejected"
    """No key, an undecodable message, or other content under the same key."""

    @property
    def action(self) -> Action:
        """What the adapter must do with the delivery."""
        return _ACTIONS[self]


_ACTIONS: Final = {
    Outcome.PROCESSED: Action.ACK,
    Outcome.DUPLICATE: Action.ACK,
    Outcome.IGNORED: Action.ACK,
    Outcome.FAILED: Action.DELAY,
    Outcome.IN_PROGRESS: Action.HOLD,
    Outcome.UNAVAILABLE: Action.HOLD,
    Outcome.DEAD: Action.DEAD_LETTER,
    Outcome.REJECTED: Action.DEAD_LETTER,
}


@dataclass(frozen=True, slots=True)
class Result(Generic[T_co]):
    """The answer to one delivery.

    Attributes:
        outcome: what happened to it.
        value: what the handler returned; for a DUPLICATE the stored result, if results are stored; None otherwise.
        error: the exception behind an outcome that is not PROCESSED.
        retry_after_s: seconds to wait before the next check or delivery; None when the outcome is final.
        attempt: how many executions of the message have failed, this one included; None: unknown, or none failed.
        delayed: the message is IN_PROGRESS because its handler has failed in another delivery: deliver it again after
            `retry_after_s`, as that one.
        reason: why the message is IN_PROGRESS, for people; None: another delivery has its key.
        replayed: `value` is what an earlier run returned, as it was stored. A DUPLICATE without it has no value.
    """

    outcome: Outcome
    value: T_co = None  # type: ignore[assignment] # then T_co is None, or has it as a member
    error: BaseException | None = None
    retry_after_s: float | None = None
    attempt: int | None = None
    delayed: bool = False
    reason: str | None = field(default=None, compare=False)
    replayed: bool = field(default=False, compare=False)

    @property
    def action(self) -> Action:
        """What the adapter must do with the delivery."""
        return Action.DELAY if self.delayed else _ACTIONS[self.outcome]

    @property
    def is_handler_error(self) -> bool:
        """Whether `error` is the handler's own exception, which its consumer does not ignore."""
        failed = self.outcome is Outcome.FAILED or self.outcome is Outcome.DEAD
        return failed and self.error is not None and not isinstance(self.error, DeadKeyError)
