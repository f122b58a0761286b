"""One message: claim its key, run the handler, record the result, in this order. See `steps` for what is yielded."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from idempotent.claims import (
    Claim,
    ClaimRequest,
    Completion,
    Decision,
    Failure,
    Lapsed,
    Released,
    Verdict,
    new_owner,
)
from idempotent.errors import (
    DoomedTransactionError,
    MessageError,
    MissingKeyError,
    StoreError,
    TransactionEscapedError,
    described,
)
from idempotent.logs import EventLog
from idempotent.message import Message
from idempotent.observe.events import Event
from idempotent.outcomes import Outcome, Result
from idempotent.policy import Handling, OnMissingKey, OnStoreError
from idempotent.processing.binding import Binding
from idempotent.processing.calling import inside_handler
from idempotent.processing.results import (
    STORE_RETRY_S,
    answered,
    completion_error,
    failure_of,
    given_up,
    processed,
    result_of_exception,
    unavailable,
)
from idempotent.processing.steps import CLAIM, COMPLETE, RUN, SLEEP, STORE, Life, timed
from idempotent.processing.turns import RETRY_S as TURN_RETRY_S
from idempotent.processing.turns import SUSPECT_DEATHS, turns
from idempotent.values import changed

log = EventLog(__name__)

_TRANSACTION_TRIES: Final = 4


def process_one(binding: Binding, message: Message, request: ClaimRequest | None = None) -> Life[Result]:
    """Process one message by itself.

    Args:
        binding: the consumer, bound to its checker.
        message: the message.
        request: its request in a group, if it was in one.
    """
    owner = new_owner()
    try:
        try:
            request = (
                binding.requests.of(message, owner) if request is None else changed(request, owner=owner)
            )
        except MessageError as error:
            return (yield from without_key(binding, message, error))
        life = _process(binding, message, request)
        if binding.observers.watch_times:
            life = timed(life, binding.name, binding.stages, binding.observers)
        return (yield from life)
    except BaseException:
        binding.protocol.abandon_all_of(owner)
        raise
    finally:
        if binding.calls.began:
            binding.calls.began.pop(id(message), None)


def _process(
    binding: Binding,
    message: Message,
    request: ClaimRequest,
    *,
    tries: int = _TRANSACTION_TRIES,
    answer: _Answer | None = None,
) -> Life[Result]:
    """Claim a key, run the handler, and record the result. If the database undid the transaction, try again.

    What not every message needs is in functions of its own. This one is all that a message passes through: handing a
    step on from one generator to the next takes as long as a call.

    Args:
        binding: the consumer, bound to its checker.
        message: the message.
        request: the request for its key.
        tries: how many transactions may be tried.
        answer: what the consumer said of the process that died.
    """
    try:
        decision: Decision = yield CLAIM, binding.lone.claim, (request,)
    except StoreError as error:
        binding.observers.claimed(binding.name, message, request, error)
        return (yield from store_failed(binding, message, error))
    claim = decision.claim
    if claim is None:
        if decision.deaths or binding.disabled or binding.observers.watch_claims:
            return (yield from _refused(binding, message, request, decision))
        return answered(binding, message, request, decision)
    try:
        if decision.deaths or binding.observers.watch_claims:
            result = yield from _Run(binding, message, request, claim).begin(decision, answer)
            if result is not None:
                return result
        try:
            value = yield binding.run_step, binding.calls.one, (claim, message)
        except BaseException as error:
            return (yield from _Run(binding, message, request, claim).handler_raised(error))
        stored: bytes | None = None
        try:
            stored = binding.encode(value, message)
            owned = yield COMPLETE, binding.lone.complete, (claim, stored)
        except BaseException as error:
            return (yield from _Run(binding, message, request, claim).not_recorded(value, stored, error))
    except DoomedTransactionError as error:
        binding.transaction_undone((message,), error)
        doomed = error
    except BaseException:
        yield STORE, binding.protocol.abandon, (claim,)  # the claim must not outlive the error
        raise
    else:
        if not owned:
            count_lost(binding, message, claim)
        return processed(value)
    return (yield from _repeat(binding, message, request, claim, doomed, tries=tries - 1))


def _repeat(
    binding: Binding,
    message: Message,
    request: ClaimRequest,
    claim: Claim,
    doomed: DoomedTransactionError,
    *,
    tries: int,
) -> Life[Result]:
    """Process a message again whose transaction the database undid."""
    if not tries:
        return (yield from given_up(binding, message, request, claim, doomed))
    binding.observers.count(binding.name, Event.TRANSACTION_REPEATED)
    yield SLEEP, time.sleep, (random.uniform(0.0, 0.02) * (_TRANSACTION_TRIES - tries),)
    return (yield from _process(binding, message, changed(request, owner=new_owner()), tries=tries))


def _refused(binding: Binding, message: Message, request: ClaimRequest, decision: Decision) -> Life[Result]:
    if decision.lapsed and request.on_lapsed is Lapsed.LEAVE and not request.differs(decision.fingerprint):
        return (yield from _process_after_death(binding, message, request, decision.deaths))
    binding.observers.claimed(binding.name, message, request, decision)
    return (yield from refused(binding, message, request, decision))


def _process_after_death(
    binding: Binding, message: Message, request: ClaimRequest, deaths: int
) -> Life[Result]:
    """Process a message whose process died while it ran; one that may be to blame, when it is its turn."""
    request = binding.requests.after_a_death(request)
    # What a handler itself gives to a consumer is part of its run, which may have the turn.
    if deaths < SUSPECT_DEATHS or inside_handler():
        return (yield from _take_over(binding, message, request, deaths))
    turn = turns.take(binding, message)
    if turn is None:
        if (long := turns.long_one()) is not None:
            holder, its, for_s = long
            log.warning("turn_is_long", extra={**holder.about(its), "for_s": round(for_s, 1)})
        reason = f"its process died {deaths} times while it ran, and it waits for its turn"
        return Result(Outcome.IN_PROGRESS, retry_after_s=TURN_RETRY_S, reason=reason)
    try:
        return (yield from _take_over(binding, message, request, deaths))
    finally:
        turn.end()


def _take_over(binding: Binding, message: Message, request: ClaimRequest, deaths: int) -> Life[Result]:
    """Process a message whose process died. A consumer that wants to be asked is asked first.

    Nothing is claimed meanwhile: a question that has no answer is no run, and adds no death.
    """
    ask = binding.options.on_expired_lease
    if not callable(ask):
        return (yield from _process(binding, message, request))
    try:
        happened = _effect_happened((yield RUN, binding.calls.ask, (ask, request.key)))
    except Exception as error:
        return _not_resolved(binding, message, error)
    log.warning("expired_lease_answered", extra={**binding.about(message), "happened": happened})
    return (yield from _process(binding, message, request, answer=_Answer(deaths, happened)))


def _not_resolved(binding: Binding, message: Message, error: Exception) -> Result:
    about = binding.about(message)
    log.warning("expired_lease_not_resolved", extra={**about, "error": described(error)})
    wait_s = binding.checker.lease_s or STORE_RETRY_S
    return Result(Outcome.UNAVAILABLE, error=error, retry_after_s=wait_s)


class _Answer(NamedTuple):
    """What a consumer said of a lapsed claim, and after how many deaths."""

    deaths: int
    happened: bool


@dataclass(slots=True, eq=False)
class _Run:
    """The run of a message whose key is claimed, apart from what every message needs, which is in `_process`.

    Attributes:
        binding: the consumer, bound to its checker.
        message: the message.
        request: the request that acquired its key.
        claim: the claim.
    """

    binding: Binding
    message: Message
    request: ClaimRequest
    claim: Claim

    def begin(self, decision: Decision, answer: _Answer | None) -> Life[Result | None]:
        """Show the claim to observers. Of a message whose process died: look at the answer, and bound its deaths.

        Returns the result, if the handler is not to run.
        """
        binding, claim = self.binding, self.claim
        binding.observers.claimed(binding.name, self.message, self.request, decision)
        if not decision.deaths:
            return None
        if binding.checker.lease_s is not None:
            binding.observers.count(binding.name, Event.LEASE_TAKEN_OVER)
        most = binding.options.max_deaths
        log.warning("process_died", extra={**self._about(), "deaths": claim.deaths, "max_deaths": most})
        result = None if answer is None else (yield from self._obey(answer))
        if result is None and claim.deaths >= most:
            return (yield from self._bury())
        return result

    def _bury(self) -> Life[Result]:
        """Make the key DEAD: as many processes have died of the message as may."""
        binding, claim = self.binding, self.claim
        reason = f"its process died {claim.deaths} times while it ran"
        failure = Failure(reason, binding.options.attempts_limit, fatal=True)
        try:
            yield STORE, binding.protocol.release, (claim, failure)
        except StoreError as error:
            return unavailable(error)
        decision = Decision(Verdict.DEAD, reason=reason)
        return (yield from refused(binding, self.message, self.request, decision))

    def _obey(self, answer: _Answer) -> Life[Result | None]:
        """Complete the key whose effect happened; None: it did not, so the handler must run."""
        binding, claim = self.binding, self.claim
        if answer.deaths != claim.deaths:
            # Another process took the key over after the question, and died: its effect may have happened.
            yield STORE, binding.protocol.abandon, (claim,)
            return Result(Outcome.IN_PROGRESS, retry_after_s=binding.checker.lease_s or STORE_RETRY_S)
        if not answer.happened:
            return None
        try:
            yield COMPLETE, binding.lone.complete, (claim,)
        except Exception as error:
            yield STORE, binding.protocol.abandon, (claim,)
            return _not_resolved(binding, self.message, error)
        return Result(Outcome.DUPLICATE)

    def _about(self) -> dict[str, object]:
        """The fields of a log line."""
        return self.binding.about(self.message)

    def handler_raised(self, error: BaseException) -> Life[Result]:
        """The result of a handler that raised; DoomedTransactionError if the database was the reason."""
        binding, message, claim = self.binding, self.message, self.claim
        if not isinstance(error, Exception):
            yield from interrupted(binding, message, claim)
            raise error
        if (yield STORE, binding.transactions.is_transient, (claim, error)):
            yield from free(binding, [(message, claim, None)])
            raise DoomedTransactionError(f"the database undid the transaction: {error}") from error
        return (yield from self._failed(error))

    def not_recorded(self, value: Any, stored: bytes | None, raised: BaseException) -> Life[Result]:
        """The result of a handler that returned, and whose completion raised, or was interrupted."""
        error = yield from completion_error(self.binding, (Completion(self.claim, stored),), raised)
        if error is None:
            return processed(value)
        if isinstance(error, DoomedTransactionError):
            # A handler that committed by itself before makes its key DEAD; else its next run would be a duplicate.
            yield from free(self.binding, [(self.message, self.claim, None)])
            raise error
        if isinstance(error, StoreError):
            self.binding.observers.count(self.binding.name, Event.COMPLETION_NOT_RECORDED)
            return Result(Outcome.UNAVAILABLE, value=value, error=error, retry_after_s=STORE_RETRY_S)
        return (yield from self._failed(error))

    def _failed(self, error: Exception) -> Life[Result]:
        """Complete the key if the consumer ignores the exception, else release it and count the attempt."""
        binding, message, claim = self.binding, self.message, self.claim
        handling = binding.options.exceptions.classify(error)
        if handling is Handling.IGNORE:
            try:
                yield STORE, binding.transactions.ignore, (self.request, claim)
            except StoreError as store_error:
                return unavailable(store_error)
            except TransactionEscapedError as escaped:
                error, handling = escaped, binding.options.exceptions.classify(escaped)
            else:
                return result_of_exception(binding, error, handling)
        failure = failure_of(binding, message, error, handling)
        (released,) = yield from free(binding, [(message, claim, failure)])
        return result_of_exception(binding, error, handling, failure, released)


def _effect_happened(answer: object) -> bool:
    """What a consumer answered. None, where `return` was forgotten, must not run the handler again."""
    if not isinstance(answer, int):
        raise TypeError(f"on_expired_lease returned {answer!r}; return True if the effect happened, or False")
    return bool(answer)


def count_lost(binding: Binding, message: Message, claim: Claim) -> None:
    """Count and log an effect that happened under a claim that another delivery has taken over."""
    binding.observers.count(binding.name, Event.COMPLETION_LOST)
    log.error("completion_lost", extra={**binding.about(message), "fence": claim.fence})


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
        value = yield (
            binding.run_step,
            binding.calls.one,
            (changed(claim, key=binding.key_of(message)), message),
        )
    except Exception as error:
        transient = yield STORE, binding.transactions.is_transient, (claim, error)
        yield from free(binding, [(message, claim, None)])
        if transient:
            binding.transaction_undone((message,), error)
            return unavailable(error)
        return result_of_exception(binding, error, binding.options.exceptions.classify(error))
    except BaseException:
        yield from interrupted(binding, message, claim)
        raise
    try:
        yield STORE, binding.protocol.complete, (claim,)
    except Exception as raised:
        failure = yield from completion_error(binding, (Completion(claim),), raised)
        if isinstance(failure, DoomedTransactionError):
            binding.transaction_undone((message,), failure)
        if isinstance(failure, (StoreError, DoomedTransactionError)):
            return unavailable(failure)
        if failure is not None:
            return result_of_exception(binding, failure, binding.options.exceptions.classify(failure))
    return processed(value)


def free(
    binding: Binding, releases: Sequence[tuple[Message, Claim, Failure | None]]
) -> Life[Sequence[Released | None]]:
    """Free keys, and count an attempt of those with a failure.

    Returns what the store answered; None: nothing. It is offered again, and the key is free when its lease ends.
    """
    if not releases:
        return ()
    try:
        answers: Sequence[Released] = yield (
            STORE,
            binding.protocol.release_many,
            ([(claim, failure) for _, claim, failure in releases],),
        )
    except StoreError as error:
        for message, _, failure in releases:
            about = {**binding.about(message), "error": str(error)}
            if failure is None:
                log.warning("release_failed", extra=about)
            else:
                log.warning("failure_not_recorded", extra=about)
        return [None] * len(releases)
    return answers


def interrupted(binding: Binding, message: Message, claim: Claim) -> Life[None]:
    """Free or park the key of a handler that was interrupted, such as by KeyboardInterrupt or a cancellation."""
    yield STORE, binding.transactions.interrupted, (claim,)
    yield from free(binding, [(message, claim, binding.options.cancelled)])
