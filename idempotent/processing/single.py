"""One message: claim, run, record. The order of these is the library."""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING, Any, Final

from idempotent.checkers.base import AbstractIdempotentChecker, anew
from idempotent.claims import Claim, ClaimRequest, Decision, Failure, Verdict
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

if TYPE_CHECKING:
    from idempotent.consumer import Consumer

log = logging.getLogger(__name__)

STORE_RETRY_S: Final = 1.0
_LONGEST_WAIT_S: Final = 60.0
_SHORTEST_WAIT_S: Final = 0.05
_TRANSACTION_TRIES: Final = 4
_PROCESSED: Final = Result(Outcome.PROCESSED)
_DUPLICATE: Final = Result(Outcome.DUPLICATE)


def process_one(consumer: Consumer, checker: AbstractIdempotentChecker, message: Message) -> Result:
    """Process one message by itself."""
    try:
        request = consumer.request(message)
    except MessageError as error:
        return without_key(consumer, checker, message, error)
    return process_keyed(consumer, checker, message, request)


def processed(returned: Any) -> Result:
    """The result of a handler that came back, one object for all those that returned nothing."""
    return _PROCESSED if returned is None else Result(Outcome.PROCESSED, value=returned)


def raised_by_handler(result: Result) -> BaseException | None:
    """The handler's own exception, if it was one and its consumer does not ignore it."""
    if result.outcome in (Outcome.FAILED, Outcome.DEAD) and not isinstance(result.error, DeadKeyError):
        return result.error
    return None


def without_key(
    consumer: Consumer, checker: AbstractIdempotentChecker, message: Message, error: MessageError
) -> Result:
    """What becomes of a message that has no key."""
    if isinstance(error, MissingKeyError) and consumer.options.on_missing_key is OnMissingKey.PROCESS:
        return run_unprotected(consumer, checker, message, Event.RAN_WITHOUT_KEY)
    return Result(Outcome.REJECTED, error=error)


def process_keyed(
    consumer: Consumer, checker: AbstractIdempotentChecker, message: Message, request: ClaimRequest
) -> Result:
    """Claim the key alone and go on from there. A transaction that the database undid costs another try."""
    doomed: DoomedTransactionError | None = None
    for attempt in range(_TRANSACTION_TRIES):
        if attempt:
            counters.add(consumer.name, Event.TRANSACTION_REPEATED)
            time.sleep(random.uniform(0.0, 0.02) * attempt)
            request = anew(request)
        try:
            decision = checker.claim(request)
        except StoreError as error:
            return store_failed(consumer, checker, message, error)
        if decision.claim is None:
            return refused(consumer, checker, message, request, decision)
        try:
            return _run_claimed(consumer, checker, message, request, decision)
        except DoomedTransactionError as error:
            doomed = error
        except BaseException:
            checker.abandon(decision.claim)  # whatever it is, the claim must not outlive it
            raise
    return Result(Outcome.UNAVAILABLE, error=doomed, retry_after_s=STORE_RETRY_S)


def refused(
    consumer: Consumer,
    checker: AbstractIdempotentChecker,
    message: Message,
    request: ClaimRequest,
    decision: Decision,
) -> Result:
    """The result of a claim that was not acquired."""
    if consumer.disabled:
        return run_unprotected(consumer, checker, message, Event.RAN_DISABLED)
    if (
        None not in (request.fingerprint, decision.fingerprint)
        and request.fingerprint != decision.fingerprint
    ):
        return Result(Outcome.REJECTED, error=mismatch(request, decision.fingerprint))
    match decision.verdict:
        case Verdict.DUPLICATE:
            value = consumer.decode(decision.result)
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


def store_failed(
    consumer: Consumer, checker: AbstractIdempotentChecker, message: Message, error: StoreError
) -> Result:
    """What becomes of a message whose key nobody can tell anything about."""
    log.warning("store_failed", extra={"consumer": consumer.name, "error": str(error)})
    if consumer.options.on_store_error is OnStoreError.PROCESS:
        return run_unprotected(consumer, checker, message, Event.RAN_WITHOUT_KEY)
    if consumer.disabled:
        return run_unprotected(consumer, checker, message, Event.RAN_DISABLED)
    return Result(Outcome.UNAVAILABLE, error=error, retry_after_s=STORE_RETRY_S)


def run_unprotected(
    consumer: Consumer, checker: AbstractIdempotentChecker, message: Message, why: Event
) -> Result:
    """Run the handler without a key, because the consumer was told to; counted and logged every time."""
    counters.add(consumer.name, why)
    log.warning(why.value, extra={"consumer": consumer.name, "position": message.position})
    try:
        claim = checker.claim_nothing()
    except StoreError as error:
        return Result(Outcome.UNAVAILABLE, error=error, retry_after_s=STORE_RETRY_S)
    try:
        value = consumer.invoke(checker, claim, message)
    except Exception as error:
        transient = checker.is_transient(claim, error)
        release_quietly(checker, claim)
        if transient:
            return Result(Outcome.UNAVAILABLE, error=error, retry_after_s=STORE_RETRY_S)
        return _failed_without_key(consumer, error)
    except BaseException:
        release_quietly(checker, claim)
        raise
    try:
        checker.complete(claim)
    except (StoreError, DoomedTransactionError) as error:
        return Result(Outcome.UNAVAILABLE, error=error, retry_after_s=STORE_RETRY_S)
    except Exception as error:
        return _failed_without_key(consumer, error)
    return processed(value)


def _failed_without_key(consumer: Consumer, error: Exception) -> Result:
    match consumer.options.exceptions.classify(error):
        case Handling.IGNORE:
            return Result(Outcome.IGNORED, error=error)
        case Handling.RETRY:
            return Result(Outcome.FAILED, error=error, retry_after_s=consumer.options.backoff.delay_s(1))
        case Handling.DEAD:
            return Result(Outcome.DEAD, error=error)


def _run_claimed(
    consumer: Consumer,
    checker: AbstractIdempotentChecker,
    message: Message,
    request: ClaimRequest,
    decision: Decision,
) -> Result:
    claim = decision.claim
    assert claim is not None
    if decision.lapsed:
        counters.add(consumer.name, Event.LEASE_TAKEN_OVER)
        log.warning("lease_taken_over", extra={"consumer": consumer.name, "key": str(request.key)})
        if callable(consumer.options.on_expired_lease):
            known = _ask(consumer, checker, claim)
            if known is None and decision.alone:
                known = _count_lapse(consumer, checker, message, request, decision)
            if known is not None:
                return known
    try:
        value = consumer.invoke(checker, claim, message)
    except Exception as error:
        if checker.is_transient(claim, error):
            release_quietly(checker, claim)
            raise DoomedTransactionError(f"the database undid the transaction: {error}") from error
        return after_exception(consumer, checker, request, claim, error)
    except BaseException:
        release_quietly(checker, claim)
        raise
    return _record(consumer, checker, request, claim, value)


def _ask(consumer: Consumer, checker: AbstractIdempotentChecker, claim: Claim) -> Result | None:
    """Ask the consumer whether a lapsed claim's effect happened; None: it did not, so run."""
    ask = consumer.options.on_expired_lease
    assert callable(ask)
    assert claim.key is not None
    try:
        if not ask(claim.key):
            return None
        checker.complete(claim)
    except Exception as error:
        log.warning("expired_lease_not_resolved", extra={"consumer": consumer.name, "key": str(claim.key)})
        wait_s = checker.lease_s or STORE_RETRY_S
        checker.abandon(claim)
        return Result(Outcome.UNAVAILABLE, error=error, retry_after_s=wait_s)
    return Result(Outcome.DUPLICATE)


def _count_lapse(
    consumer: Consumer,
    checker: AbstractIdempotentChecker,
    message: Message,
    request: ClaimRequest,
    decision: Decision,
) -> Result | None:
    """The effect did not happen, and its process died or stalled: an attempt, counted after the question."""
    assert decision.claim is not None
    try:
        counted = checker.count_lapse(decision, consumer.options.max_attempts)
    except StoreError as error:
        checker.abandon(decision.claim)
        return Result(Outcome.UNAVAILABLE, error=error, retry_after_s=STORE_RETRY_S)
    return None if counted is decision else refused(consumer, checker, message, request, counted)


def _record(
    consumer: Consumer, checker: AbstractIdempotentChecker, request: ClaimRequest, claim: Claim, value: Any
) -> Result:
    """The effect happened (or waits for its COMMIT): make it final."""
    try:
        owned = checker.complete(claim, consumer.encode(value))
    except DoomedTransactionError:
        raise
    except StoreError as error:
        counters.add(consumer.name, Event.COMPLETION_NOT_RECORDED)
        return Result(Outcome.UNAVAILABLE, value=value, error=error, retry_after_s=STORE_RETRY_S)
    except Exception as error:
        return after_exception(consumer, checker, request, claim, error)
    if not owned:
        count_lost(consumer, claim)
    return processed(value)


def count_lost(consumer: Consumer, claim: Claim) -> None:
    """An effect happened under a claim that somebody else has taken over."""
    counters.add(consumer.name, Event.COMPLETION_LOST)
    log.error(
        "completion_lost", extra={"consumer": consumer.name, "key": str(claim.key), "fence": claim.fence}
    )


def failure_of(consumer: Consumer, error: BaseException, handling: Handling) -> Failure:
    """An exception as the store keeps it."""
    try:
        said = str(error)
    except Exception:  # an exception of the application that cannot even be shown
        said = "(its message cannot be shown)"
    return Failure(
        f"{type(error).__name__}: {said}",
        consumer.options.max_attempts,
        fatal=handling is Handling.DEAD,
    )


def after_exception(
    consumer: Consumer,
    checker: AbstractIdempotentChecker,
    request: ClaimRequest,
    claim: Claim,
    error: Exception,
) -> Result:
    """Record or free the key of a handler that raised."""
    handling = consumer.options.exceptions.classify(error)
    if handling is Handling.IGNORE:
        try:
            checker.ignore(request, claim)
        except StoreError as store_error:
            return Result(Outcome.UNAVAILABLE, error=store_error, retry_after_s=STORE_RETRY_S)
        return Result(Outcome.IGNORED, error=error)
    try:
        released = checker.release(claim, failure_of(consumer, error, handling))
    except StoreError as store_error:
        log.warning("failure_not_recorded", extra={"consumer": consumer.name, "error": str(store_error)})
        return Result(Outcome.FAILED, error=error, retry_after_s=consumer.options.backoff.delay_s(1))
    if released.dead:
        return Result(Outcome.DEAD, error=error)
    wait_s = consumer.options.backoff.delay_s(released.attempts)
    return Result(Outcome.FAILED, error=error, retry_after_s=wait_s)


def release_quietly(checker: AbstractIdempotentChecker, claim: Claim) -> None:
    """Free a key without counting an attempt; if the store does not listen, its lease ends by itself."""
    try:
        checker.release(claim)
    except StoreError as error:
        log.warning("release_failed", extra={"key": str(claim.key), "error": str(error)})
