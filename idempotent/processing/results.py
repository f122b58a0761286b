"""Functions that make the Result of a delivery from the answer of a checker or a handler."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final

from idempotent.claims import Claim, ClaimRequest, Completion, Decision, Failure, Released, Verdict
from idempotent.errors import (
    DeadKeyError,
    DoomedTransactionError,
    FingerprintMismatchError,
    StoreError,
    described,
)
from idempotent.keys import Key
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result
from idempotent.policy import Backoff, Handling
from idempotent.processing.binding import Binding
from idempotent.processing.steps import STORE, Life

STORE_RETRY_S: Final = 1.0
_LONGEST_WAIT_S: Final = 60.0
_SHORTEST_WAIT_S: Final = 0.05
# A copy of a message that waits for its retry longer goes back to the broker: what is held takes the place of others.
_LONGEST_HOLD_S: Final = 5.0
_PROCESSED: Final = Result(Outcome.PROCESSED)
_DUPLICATE: Final = Result(Outcome.DUPLICATE)


def processed(returned: Any) -> Result:
    """The result of a handler that returned; if it returned None, a shared object."""
    return _PROCESSED if returned is None else Result(Outcome.PROCESSED, value=returned)


def result_of_exception(
    binding: Binding,
    error: BaseException | None,
    handling: Handling,
    failure: Failure | None = None,
    released: Released | None = None,
) -> Result:
    """The result of a handler that raised.

    Args:
        binding: the consumer, bound to its checker.
        error: what it raised.
        handling: what that means to the consumer.
        failure: what the store was to record; None: nothing, as no attempt is counted, or the key was not claimed.
        released: what the store answered; None: it has not recorded the failure, and the message comes again.
    """
    match handling:
        case Handling.IGNORE:
            return Result(Outcome.IGNORED, error=error)
        case Handling.WAIT:
            return unavailable(error)
        case Handling.REJECT:
            return Result(Outcome.REJECTED, error=error)
        case Handling.DEAD if failure is None:
            return Result(Outcome.DEAD, error=error)
        case Handling.RETRY | Handling.DEAD:
            return _failed(binding, error, failure, released)


def _failed(
    binding: Binding, error: BaseException | None, failure: Failure | None, released: Released | None
) -> Result:
    attempt = None if released is None else released.attempts
    if released is not None and released.dead:
        return Result(Outcome.DEAD, error=error, attempt=attempt)
    # What the store keeps the key for, if it keeps it: of a backoff with jitter another draw would be another delay.
    backoff: Backoff | Failure = binding.options.backoff
    if failure is not None and failure.backoff is not None:
        backoff = failure
    return Result(Outcome.FAILED, error=error, retry_after_s=backoff.delay_s(attempt or 1), attempt=attempt)


def completion_error(
    binding: Binding, completions: Sequence[Completion], raised: BaseException
) -> Life[Exception | None]:
    """What an exception of a completion means. None: it was recorded all the same; a StoreError: that is unknown.

    The handler of a signal, such as that of a time limit, may raise anywhere. What is no Exception is raised again.
    """
    if isinstance(raised, (StoreError, DoomedTransactionError)):
        return raised
    error: Exception | None = None
    recorded = False
    try:
        recorded = yield STORE, binding.transactions.committed, (completions,)
    except StoreError as unknown:
        error = unknown
    if not isinstance(raised, Exception):
        raise raised
    return error if error or recorded else raised


def unavailable(error: BaseException | None) -> Result:
    """The result when the store did not answer."""
    return Result(Outcome.UNAVAILABLE, error=error, retry_after_s=STORE_RETRY_S)


def answered(binding: Binding, message: Message, request: ClaimRequest, decision: Decision) -> Result:
    """The result of a claim that was not acquired."""
    if request.differs(decision.fingerprint):
        return Result(Outcome.REJECTED, error=mismatch(request, decision.fingerprint))
    match decision.verdict:
        case Verdict.DUPLICATE:
            value, replayed = binding.decode(decision.result, message)
            return Result(Outcome.DUPLICATE, value=value, replayed=True) if replayed else _DUPLICATE
        case Verdict.DEAD:
            return Result(Outcome.DEAD, error=_dead(binding, message, request.key, decision.reason))
        case _:
            rest_s, reason = decision.retry_after_s, decision.reason
            if decision.held:
                reason = f"an earlier delivery failed, and its backoff ends in {rest_s:.1f} s"
                # A backoff that began before the store's clock went back ends later than any could.
                rest_s = min(rest_s, binding.options.backoff.maximum_s)
            if decision.held and rest_s > _LONGEST_HOLD_S:
                return Result(Outcome.IN_PROGRESS, retry_after_s=rest_s, delayed=True, reason=reason)
            wait_s = min(max(rest_s, _SHORTEST_WAIT_S), _LONGEST_WAIT_S)
            return Result(Outcome.IN_PROGRESS, retry_after_s=wait_s, reason=reason)


def _dead(binding: Binding, message: Message, key: Key, reason: str | None) -> DeadKeyError:
    options = binding.checker.command_options
    if message.from_broker:
        free = "return its dead letter: idempotent redrive MODULE:CONSUMER --broker URL"
    elif options:
        free = f"let its next call run: idempotent keys resolve {shlex.quote(key.text)} --retry {options}"
    else:
        free = "let its next call run: reopen() of the checker's admin()"
    return DeadKeyError(f"{key} is dead: {reason}. When the cause is mended, {free}")


def mismatch(request: ClaimRequest, stored: bytes | None) -> FingerprintMismatchError:
    """The error that names the fingerprints of both contents of a key."""
    before = stored.hex() if stored else "none"
    now = request.fingerprint.hex() if request.fingerprint else "none"
    return FingerprintMismatchError(
        f"{request.key} was claimed with content {before}, and this message has content {now}"
    )


def failure_of(
    binding: Binding, message: Message, error: BaseException, handling: Handling
) -> Failure | None:
    """The failure that the store records for an exception; None: it counts no attempt.

    The broker's other deliveries of the message wait for its backoff. Who calls the consumer with a message of his own
    decides himself when to try again.
    """
    if handling not in (Handling.RETRY, Handling.DEAD):
        return None
    options = binding.options
    fatal = handling is Handling.DEAD
    backoff = options.backoff if message.from_broker else None
    return Failure(described(error), options.attempts_limit, fatal=fatal, backoff=backoff)


def given_up(
    binding: Binding, message: Message, request: ClaimRequest, claim: Claim, doomed: DoomedTransactionError
) -> Life[Result]:
    """The result of a message whose transaction the database undid again and again.

    It waits, and counts no attempt. But one whose own work ends its connection would be repeated for ever, so a second
    series of lost connections is an attempt; the first may be a failover.
    """
    lost = yield STORE, binding.transactions.has_lost_connection, (doomed,)
    if not lost or binding.is_first_loss(request.key):
        return unavailable(doomed)
    failure = failure_of(binding, message, doomed, Handling.RETRY)
    try:
        released = yield STORE, binding.protocol.release, (claim, failure)
    except StoreError as error:
        return unavailable(error)
    return result_of_exception(binding, doomed, Handling.RETRY, failure, released)
