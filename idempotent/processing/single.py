"""One message: claim, run, record. The order of these is the library."""

from __future__ import annotations

import logging
import random
import time
from typing import Any, Final

from idempotent.claims import Claim, ClaimRequest, Decision, Failure, Verdict, new_owner
from idempotent.errors import (
    DeadKeyError,
    DoomedTransactionError,
    FingerprintMismatchError,
    MessageError,
    MissingKeyError,
    StoreError,
)
from idempotent.message import Message
from idempotent.observe.counting import Event, counters
from idempotent.outcomes import Outcome, Result
from idempotent.policy import Handling, OnMissingKey, OnStoreError
from idempotent.processing.binding import Binding
from idempotent.values import changed

log = logging.getLogger(__name__)

STORE_RETRY_S: Final = 1.0
_LONGEST_WAIT_S: Final = 60.0
_SHORTEST_WAIT_S: Final = 0.05
_TRANSACTION_TRIES: Final = 4
_PROCESSED: Final = Result(Outcome.PROCESSED)
_DUPLICATE: Final = Result(Outcome.DUPLICATE)


def process_one(binding: Binding, message: Message) -> Result:
    """Process one message by itself."""
    try:
        request = binding.requests.of(message)
    except MessageError as error:
        return without_key(binding, message, error)
    return process_keyed(binding, message, request)


def processed(returned: Any) -> Result:
    """The result of a handler that came back, one object for all those that returned nothing."""
    return _PROCESSED if returned is None else Result(Outcome.PROCESSED, value=returned)


def raised_by_handler(result: Result) -> BaseException | None:
    """The handler's own exception, if it was one and its consumer does not ignore it."""
    if result.outcome in (Outcome.FAILED, Outcome.DEAD) and not isinstance(result.error, DeadKeyError):
        return result.error
    return None


def without_key(binding: Binding, message: Message, error: MessageError) -> Result:
    """What becomes of a message that has no key."""
    if isinstance(error, MissingKeyError) and binding.options.on_missing_key is OnMissingKey.PROCESS:
        return run_unprotected(binding, message, Event.RAN_WITHOUT_KEY)
    return Result(Outcome.REJECTED, error=error)


def process_keyed(binding: Binding, message: Message, request: ClaimRequest) -> Result:
    """Claim the key alone and go on from there. A transaction that the database undid costs another try."""
    doomed: DoomedTransactionError | None = None
    for attempt in range(_TRANSACTION_TRIES):
        if attempt:
            counters.add(binding.name, Event.TRANSACTION_REPEATED)
            time.sleep(random.uniform(0.0, 0.02) * attempt)
            request = changed(request, owner=new_owner())
        try:
            decision = binding.desk.claim(request)
        except StoreError as error:
            return store_failed(binding, message, error)
        if decision.claim is None:
            return refused(binding, message, request, decision)
        try:
            return _run_claimed(binding, message, request, decision)
        except DoomedTransactionError as error:
            doomed = error
        except BaseException:
            binding.desk.abandon(decision.claim)  # whatever it is, the claim must not outlive it
            raise
    return Result(Outcome.UNAVAILABLE, error=doomed, retry_after_s=STORE_RETRY_S)


def refused(
    binding: Binding,
    message: Message,
    request: ClaimRequest,
    decision: Decision,
) -> Result:
    """The result of a claim that was not acquired."""
    if binding.disabled:
        return run_unprotected(binding, message, Event.RAN_DISABLED)
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


def store_failed(binding: Binding, message: Message, error: StoreError) -> Result:
    """What becomes of a message whose key nobody can tell anything about."""
    log.warning("store_failed", extra={"consumer": binding.name, "error": str(error)})
    if binding.options.on_store_error is OnStoreError.PROCESS:
        return run_unprotected(binding, message, Event.RAN_WITHOUT_KEY)
    if binding.disabled:
        return run_unprotected(binding, message, Event.RAN_DISABLED)
    return Result(Outcome.UNAVAILABLE, error=error, retry_after_s=STORE_RETRY_S)


def run_unprotected(binding: Binding, message: Message, why: Event) -> Result:
    """Run the handler without a key, because the consumer was told to; counted and logged every time."""
    counters.add(binding.name, why)
    log.warning(why.value, extra={"consumer": binding.name, "position": message.position})
    try:
        claim = binding.transactions.claim_nothing()
    except StoreError as error:
        return Result(Outcome.UNAVAILABLE, error=error, retry_after_s=STORE_RETRY_S)
    try:
        value = binding.invoke(claim, message)
    except Exception as error:
        transient = binding.transactions.is_transient(claim, error)
        release_quietly(binding, claim)
        if transient:
            return Result(Outcome.UNAVAILABLE, error=error, retry_after_s=STORE_RETRY_S)
        return _failed_without_key(binding, error)
    except BaseException:
        release_quietly(binding, claim)
        raise
    try:
        binding.desk.complete(claim)
    except (StoreError, DoomedTransactionError) as error:
        return Result(Outcome.UNAVAILABLE, error=error, retry_after_s=STORE_RETRY_S)
    except Exception as error:
        return _failed_without_key(binding, error)
    return processed(value)


def _failed_without_key(binding: Binding, error: Exception) -> Result:
    match binding.options.exceptions.classify(error):
        case Handling.IGNORE:
            return Result(Outcome.IGNORED, error=error)
        case Handling.RETRY:
            return Result(Outcome.FAILED, error=error, retry_after_s=binding.options.backoff.delay_s(1))
        case Handling.DEAD:
            return Result(Outcome.DEAD, error=error)


def _run_claimed(
    binding: Binding,
    message: Message,
    request: ClaimRequest,
    decision: Decision,
) -> Result:
    claim = decision.claim
    assert claim is not None
    if decision.lapsed:
        counters.add(binding.name, Event.LEASE_TAKEN_OVER)
        log.warning("lease_taken_over", extra={"consumer": binding.name, "key": str(request.key)})
        if callable(binding.options.on_expired_lease):
            known = _ask(binding, claim)
            if known is None and decision.alone:
                known = _count_lapse(binding, message, request, decision)
            if known is not None:
                return known
    try:
        value = binding.invoke(claim, message)
    except Exception as error:
        if binding.transactions.is_transient(claim, error):
            release_quietly(binding, claim)
            raise DoomedTransactionError(f"the database undid the transaction: {error}") from error
        return after_exception(binding, request, claim, error)
    except BaseException:
        release_quietly(binding, claim)
        raise
    return _record(binding, request, claim, value)


def _ask(binding: Binding, claim: Claim) -> Result | None:
    """Ask the consumer whether a lapsed claim's effect happened; None: it did not, so run."""
    ask = binding.options.on_expired_lease
    assert callable(ask)
    assert claim.key is not None
    try:
        if not ask(claim.key):
            return None
        binding.desk.complete(claim)
    except Exception as error:
        log.warning("expired_lease_not_resolved", extra={"consumer": binding.name, "key": str(claim.key)})
        wait_s = binding.checker.lease_s or STORE_RETRY_S
        binding.desk.abandon(claim)
        return Result(Outcome.UNAVAILABLE, error=error, retry_after_s=wait_s)
    return Result(Outcome.DUPLICATE)


def _count_lapse(
    binding: Binding,
    message: Message,
    request: ClaimRequest,
    decision: Decision,
) -> Result | None:
    """The effect did not happen, and its process died or stalled: an attempt, counted after the question."""
    assert decision.claim is not None
    try:
        counted = binding.desk.count_lapse(decision, binding.options.max_attempts)
    except StoreError as error:
        binding.desk.abandon(decision.claim)
        return Result(Outcome.UNAVAILABLE, error=error, retry_after_s=STORE_RETRY_S)
    return None if counted is decision else refused(binding, message, request, counted)


def _record(binding: Binding, request: ClaimRequest, claim: Claim, value: Any) -> Result:
    """The effect happened (or waits for its COMMIT): make it final."""
    try:
        owned = binding.desk.complete(claim, binding.encode(value))
    except DoomedTransactionError:
        raise
    except StoreError as error:
        counters.add(binding.name, Event.COMPLETION_NOT_RECORDED)
        return Result(Outcome.UNAVAILABLE, value=value, error=error, retry_after_s=STORE_RETRY_S)
    except Exception as error:
        return after_exception(binding, request, claim, error)
    if not owned:
        count_lost(binding, claim)
    return processed(value)


def count_lost(binding: Binding, claim: Claim) -> None:
    """An effect happened under a claim that somebody else has taken over."""
    counters.add(binding.name, Event.COMPLETION_LOST)
    log.error(
        "completion_lost", extra={"consumer": binding.name, "key": str(claim.key), "fence": claim.fence}
    )


def failure_of(binding: Binding, error: BaseException, handling: Handling) -> Failure:
    """An exception as the store keeps it."""
    try:
        said = str(error)
    except Exception:  # an exception of the application that cannot even be shown
        said = "(its message cannot be shown)"
    return Failure(
        f"{type(error).__name__}: {said}",
        binding.options.max_attempts,
        fatal=handling is Handling.DEAD,
    )


def after_exception(
    binding: Binding,
    request: ClaimRequest,
    claim: Claim,
    error: Exception,
) -> Result:
    """Record or free the key of a handler that raised."""
    handling = binding.options.exceptions.classify(error)
    if handling is Handling.IGNORE:
        try:
            binding.transactions.ignore(request, claim)
        except StoreError as store_error:
            return Result(Outcome.UNAVAILABLE, error=store_error, retry_after_s=STORE_RETRY_S)
        return Result(Outcome.IGNORED, error=error)
    try:
        released = binding.desk.release(claim, failure_of(binding, error, handling))
    except StoreError as store_error:
        log.warning("failure_not_recorded", extra={"consumer": binding.name, "error": str(store_error)})
        return Result(Outcome.FAILED, error=error, retry_after_s=binding.options.backoff.delay_s(1))
    if released.dead:
        return Result(Outcome.DEAD, error=error)
    wait_s = binding.options.backoff.delay_s(released.attempts)
    return Result(Outcome.FAILED, error=error, retry_after_s=wait_s)


def release_quietly(binding: Binding, claim: Claim) -> None:
    """Free a key without counting an attempt; if the store does not listen, its lease ends by itself."""
    try:
        binding.desk.release(claim)
    except StoreError as error:
        log.warning("release_failed", extra={"key": str(claim.key), "error": str(error)})
