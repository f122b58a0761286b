"""Runs without protection: no key, no answer from the store, or the kill switch, if the consumer allows it."""

from __future__ import annotations

from idempotent.claims import Claim, ClaimRequest, Decision
from idempotent.errors import DoomedTransactionError, MessageError, MissingKeyError, StoreError
from idempotent.logs import EventLog
from idempotent.message import Message
from idempotent.observe.events import Event
from idempotent.outcomes import Outcome, Result
from idempotent.policy import Handling, OnMissingKey, OnStoreError
from idempotent.processing.binding import Binding
from idempotent.processing.results import answered, processed, unavailable
from idempotent.processing.steps import RUN, STORE, Life
from idempotent.values import changed

log = EventLog(__name__)


def without_key(binding: Binding, message: Message, error: MessageError) -> Life[Result]:
    """Reject a message that has no key, or run it unprotected."""
    if isinstance(error, MissingKeyError) and binding.options.on_missing_key is OnMissingKey.PROCESS:
        return (yield from run_unprotected(binding, message, Event.RAN_WITHOUT_KEY))
    return Result(Outcome.REJECTED, error=error)


def refused(binding: Binding, message: Message, request: ClaimRequest, decision: Decision) -> Life[Result]:
    """The result of a message whose key was not acquired; with the kill switch on, run it unprotected."""
    if binding.disabled:
        return (yield from run_unprotected(binding, message, Event.RAN_DISABLED))
    return answered(binding, message, request, decision)


def store_failed(binding: Binding, message: Message, error: StoreError) -> Life[Result]:
    """UNAVAILABLE, because the store did not answer; run the message unprotected if the consumer allows it."""
    more = binding.store_failures.take()
    if more is not None:
        log.warning("store_failed", extra={**binding.about(message), "error": str(error), "more": more})
    if binding.options.on_store_error is OnStoreError.PROCESS:
        return (yield from run_unprotected(binding, message, Event.RAN_WITHOUT_KEY))
    if binding.disabled:
        return (yield from run_unprotected(binding, message, Event.RAN_DISABLED))
    return unavailable(error)


def run_unprotected(binding: Binding, message: Message, why: Event) -> Life[Result]:
    """Run the handler without claiming its key; counted and logged every time."""
    binding.observers.count(binding.name, why)
    log.warning("ran_without_protection", extra={**binding.about(message), "why": why.value})
    try:
        claim: Claim = yield STORE, binding.transactions.claim_nothing, ()
    except StoreError as error:
        return unavailable(error)
    try:
        # What the handler passes on as an idempotency key is the same as in a protected run.
        value = yield RUN, binding.calls.one, (changed(claim, key=binding.key_of(message)), message)
    except Exception as error:
        transient = yield STORE, binding.transactions.is_transient, (claim, error)
        yield from release_quietly(binding, message, claim)
        if transient:
            binding.transaction_undone((message,), error)
            return unavailable(error)
        return _failed_without_key(binding, error)
    except BaseException:
        yield from interrupted(binding, message, claim)
        raise
    try:
        yield STORE, binding.desk.complete, (claim,)
    except (StoreError, DoomedTransactionError) as error:
        if isinstance(error, DoomedTransactionError):
            binding.transaction_undone((message,), error)
        return unavailable(error)
    except Exception as error:
        return _failed_without_key(binding, error)
    return processed(value)


def _failed_without_key(binding: Binding, error: Exception) -> Result:
    match binding.options.exceptions.classify(error):
        case Handling.IGNORE:
            return Result(Outcome.IGNORED, error=error)
        case Handling.RETRY:
            return Result(Outcome.FAILED, error=error, retry_after_s=binding.options.backoff.delay_s(1))
        case Handling.WAIT:
            return unavailable(error)
        case Handling.DEAD:
            return Result(Outcome.DEAD, error=error)


def release_quietly(binding: Binding, message: Message, claim: Claim) -> Life[None]:
    """Free a key without counting an attempt; if the store does not answer, the key is free when its lease ends."""
    try:
        yield STORE, binding.desk.release, (claim,)
    except StoreError as error:
        log.warning("release_failed", extra={**binding.about(message), "error": str(error)})


def interrupted(binding: Binding, message: Message, claim: Claim) -> Life[None]:
    """Free the key of a handler that was interrupted, such as by KeyboardInterrupt or a cancellation."""
    yield STORE, binding.transactions.interrupted, (claim,)
    yield from release_quietly(binding, message, claim)
