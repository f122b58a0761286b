"""Results: what an answer of a checker or a handler means for the delivery."""

from __future__ import annotations

from typing import Any, Final

from idempotent.claims import ClaimRequest, Decision, Failure, Verdict
from idempotent.errors import DeadKeyError, FingerprintMismatchError
from idempotent.outcomes import Outcome, Result
from idempotent.policy import Handling
from idempotent.processing.binding import Binding

STORE_RETRY_S: Final = 1.0
_LONGEST_WAIT_S: Final = 60.0
_SHORTEST_WAIT_S: Final = 0.05
_PROCESSED: Final = Result(Outcome.PROCESSED)
_DUPLICATE: Final = Result(Outcome.DUPLICATE)


def processed(returned: Any) -> Result:
    """The result of a handler that returned; those that return None share one object."""
    return _PROCESSED if returned is None else Result(Outcome.PROCESSED, value=returned)


def raised_by_handler(result: Result) -> BaseException | None:
    """The handler's own exception, if it was one and its consumer does not ignore it."""
    if result.outcome in (Outcome.FAILED, Outcome.DEAD) and not isinstance(result.error, DeadKeyError):
        return result.error
    return None


def unavailable(error: BaseException | None) -> Result:
    """The result of a store that did not answer."""
    return Result(Outcome.UNAVAILABLE, error=error, retry_after_s=STORE_RETRY_S)


def answered(binding: Binding, request: ClaimRequest, decision: Decision) -> Result:
    """The result of a claim that was not acquired."""
    if request.differs(decision.fingerprint):
        return Result(Outcome.REJECTED, error=mismatch(request, decision.fingerprint))
    match decision.verdict:
        case Verdict.DUPLICATE:
            value = binding.decode(decision.result)
            return _DUPLICATE if value is None else Result(Outcome.DUPLICATE, value=value)
        case Verdict.DEAD:
            return Result(Outcome.DEAD, error=DeadKeyError(f"{request.key} is dead: {decision.reason}"))
        case _:
            wait_s = min(max(decision.retry_after_s, _SHORTEST_WAIT_S), _LONGEST_WAIT_S)
            return Result(Outcome.IN_PROGRESS, retry_after_s=wait_s)


def mismatch(request: ClaimRequest, stored: bytes | None) -> FingerprintMismatchError:
    """The error that names both contents of one key."""
    theirs = stored.hex() if stored else "none"
    ours = request.fingerprint.hex() if request.fingerprint else "none"
    return FingerprintMismatchError(
        f"{request.key} was claimed with content {theirs}, and this message has content {ours}"
    )


def failure_of(binding: Binding, error: BaseException, handling: Handling) -> Failure:
    """An exception as the store keeps it."""
    try:
        said = str(error)
    except Exception:  # an exception of the application that cannot even be shown
        said = "(its message cannot be shown)"
    return Failure(
        f"{type(error).__name__}: {said}", binding.options.max_attempts, fatal=handling is Handling.DEAD
    )
