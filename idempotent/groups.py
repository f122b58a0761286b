"""Many messages together: one statement claims them, one records them, and each keeps an outcome of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from idempotent.checker import AbstractIdempotentChecker
from idempotent.claims import Claim, ClaimRequest, Completion, Failure, new_owner
from idempotent.errors import MessageError, StoreBusyError, StoreError
from idempotent.message import Message
from idempotent.observe import Event, counters
from idempotent.outcomes import Action, Outcome, Result
from idempotent.policy import Handling, OnExpiredLease
from idempotent.processing import (
    STORE_RETRY_S,
    count_lost,
    failure_of,
    mismatch,
    process_keyed,
    refused,
    store_failed,
    without_key,
)

if TYPE_CHECKING:
    from idempotent.consumer import Consumer

log = logging.getLogger(__name__)

# A slow group records what is done so far, so that a crash repeats at most about this much of it.
_RECORD_EVERY_S: Final = 1.0
_NO_CLAIM: Final = Claim(None)
# Of handlers that return nothing, which are most.
_PROCESSED: Final = Result(Outcome.PROCESSED)


def process_many(
    consumer: Consumer, checker: AbstractIdempotentChecker, messages: Sequence[Message]
) -> list[Result]:
    """Process messages together; results align with the input."""
    group = _Group(consumer, checker, messages)
    group.run()
    return [group.results[index] for index in range(len(messages))]


@dataclass(slots=True, eq=False)
class _Item:
    """One message that is the first of its key in the group, and what has become of it so far.

    One object, and not frozen: there is one for every message, on the way that every message takes.
    """

    index: int
    message: Message
    request: ClaimRequest
    claim: Claim = _NO_CLAIM
    value: Any = None
    error: Exception | None = None
    failure: Failure | None = None

    @property
    def result(self) -> Result:
        """Of an item whose effect is on record."""
        if self.error is not None:
            return Result(Outcome.IGNORED, error=self.error)
        return _PROCESSED if self.value is None else Result(Outcome.PROCESSED, value=self.value)


class _Group:
    """The messages of one call and what has become of them so far."""

    def __init__(
        self, consumer: Consumer, checker: AbstractIdempotentChecker, messages: Sequence[Message]
    ) -> None:
        self._consumer = consumer
        self._checker = checker
        self._messages = messages
        self.results: dict[int, Result] = {}
        self._alone: list[_Item] = []
        # A claim that parks or asks is always made alone; so is one whose verdict is ignored, because what runs
        # against its verdict has a transaction of its own.
        self._is_one = consumer.options.on_expired_lease is OnExpiredLease.RETRY and not consumer.disabled

    def run(self) -> None:
        firsts, copies = self._collapse()
        if len(firsts) == 1 or not self._is_one:
            self._alone = firsts
        elif firsts:
            claimed = self._claim(firsts)
            if claimed:
                try:
                    self._run_claimed(claimed)
                except BaseException:
                    for item in claimed:
                        self._checker.abandon(item.claim)  # whatever it is, the claims must not outlive it
                    raise
        for item in self._alone:
            self.results[item.index] = self._process_alone(item)
        for item, first in copies:
            self.results[item.index] = self._result_of_copy(item, self.results[first.index])

    def _collapse(self) -> tuple[list[_Item], list[tuple[_Item, _Item]]]:
        """Tell first deliveries of a key from later copies in the same group."""
        firsts: dict[bytes, _Item] = {}
        copies: list[tuple[_Item, _Item]] = []
        owner = new_owner() if self._is_one else None
        for index, message in enumerate(self._messages):
            try:
                request = self._consumer.request(message, owner)
            except MessageError as error:
                self.results[index] = without_key(self._consumer, self._checker, message, error)
                continue
            item = _Item(index, message, request)
            first = firsts.setdefault(request.key.hash, item)
            if first is item:
                continue
            if request.fingerprint != first.request.fingerprint and not self._consumer.disabled:
                self.results[index] = Result(
                    Outcome.REJECTED, error=mismatch(request, first.request.fingerprint)
                )
            else:
                copies.append((item, first))
        return list(firsts.values()), copies

    def _claim(self, items: Sequence[_Item]) -> list[_Item]:
        try:
            decisions = self._checker.claim_many([item.request for item in items])
        except StoreBusyError:
            self._repeat_alone(items)
            return []
        except StoreError as error:
            for item in items:
                self.results[item.index] = store_failed(self._consumer, self._checker, item.message, error)
            return []
        claimed = []
        for item, decision in zip(items, decisions, strict=True):
            if decision.claim is not None:
                item.claim = decision.claim
                claimed.append(item)
            elif decision.lapsed:
                self._alone.append(item)
            else:
                self.results[item.index] = refused(
                    self._consumer, self._checker, item.message, item.request, decision
                )
        return claimed

    def _run_claimed(self, claimed: list[_Item]) -> None:
        if self._consumer.handler.batch:
            self._run_batch_handler(claimed)
        elif self._checker.group_is_atomic:
            self._run_atomically(claimed)
        else:
            self._run_independently(claimed)

    def _run_batch_handler(self, claimed: list[_Item]) -> None:
        """One call for all: its effects stand or fall together."""
        messages = [item.message for item in claimed]
        try:
            self._consumer.invoke_batch(self._checker, claimed[0].claim, messages)
        except Exception:
            self._give_up(claimed)
            return
        except BaseException:
            self._release(claimed)
            raise
        self._record(claimed, claimed)

    def _run_atomically(self, claimed: list[_Item]) -> None:
        """All handlers in one transaction."""
        ran: list[_Item] = []
        raised: list[_Item] = []
        for item in claimed:
            try:
                with self._checker.isolated(item.claim, self._consumer.handler.takes):
                    item.value = self._consumer.invoke(self._checker, item.claim, item.message)
            except Exception as error:
                if not self._survives(item, error, ran, raised):
                    self._give_up(claimed)
                    return
            except BaseException:
                self._release(claimed)
                raise
            else:
                ran.append(item)
        if not ran:
            self._release(claimed)
        if self._record(ran, claimed):
            self._free(raised)

    def _survives(self, item: _Item, error: Exception, ran: list[_Item], raised: list[_Item]) -> bool:
        """Whether an atomic group can go on without a handler that raised."""
        if not self._checker.isolates or self._checker.is_transient(item.claim, error):
            return False
        if self._is_ignored(item, error):
            ran.append(item)
            return True
        try:
            self._checker.forget(item.claim)
        except Exception:
            return False
        raised.append(item)
        return True

    def _run_independently(self, claimed: list[_Item]) -> None:
        """Handlers one after the other, each with a claim of its own."""
        ran: list[_Item] = []
        raised: list[_Item] = []
        invoke, checker = self._consumer.invoke, self._checker
        record_at = time.monotonic() + _RECORD_EVERY_S
        for position, item in enumerate(claimed):
            try:
                item.value = invoke(checker, item.claim, item.message)
            except Exception as error:
                (ran if self._is_ignored(item, error) else raised).append(item)
            except BaseException:
                self._record(ran, claimed)
                self._free(raised)
                self._release(claimed[position:])
                raise
            else:
                ran.append(item)
            if time.monotonic() > record_at:
                self._record(ran, claimed)
                ran = []
                record_at = time.monotonic() + _RECORD_EVERY_S
        self._record(ran, claimed)
        self._free(raised)

    def _record(self, ran: Sequence[_Item], claimed: Sequence[_Item]) -> bool:
        """Make effects final; False: an atomic group could not commit as a whole, and all of it runs one by one."""
        if not ran:
            return True
        try:
            kept = self._checker.complete_many([self._completion(item) for item in ran])
        except StoreError as error:
            counters.add(self._consumer.name, Event.COMPLETION_NOT_RECORDED, len(ran))
            for item in ran:
                self.results[item.index] = Result(
                    Outcome.UNAVAILABLE, error=error, retry_after_s=STORE_RETRY_S
                )
        except Exception:
            if not self._checker.group_is_atomic:
                raise
            # Doomed, or refused at COMMIT: whose fault it is shows when each runs alone.
            self._give_up(claimed)
            return False
        else:
            for item, owned in zip(ran, kept, strict=True):
                if not owned:
                    count_lost(self._consumer, item.claim)
                self.results[item.index] = item.result
        return True

    def _free(self, raised: list[_Item]) -> None:
        """Release the keys of handlers that raised, and count their attempts."""
        if not raised:
            return
        try:
            released = self._checker.release_many([(item.claim, item.failure) for item in raised])
        except StoreError as error:
            log.warning("failure_not_recorded", extra={"consumer": self._consumer.name, "error": str(error)})
            for item in raised:
                self._failed(item, attempts=1)
            return
        for item, answer in zip(raised, released, strict=True):
            if answer.dead:
                self.results[item.index] = Result(Outcome.DEAD, error=item.error)
            else:
                self._failed(item, attempts=answer.attempts)

    def _give_up(self, claimed: Sequence[_Item]) -> None:
        """Undo the group, and run each message in a claim of its own. No attempt is burnt."""
        self._release(claimed)
        self._repeat_alone(claimed)

    def _repeat_alone(self, items: Sequence[_Item]) -> None:
        counters.add(self._consumer.name, Event.GROUP_REPEATED)
        self._alone.extend(items)

    def _release(self, claimed: Sequence[_Item]) -> None:
        if not claimed:
            return
        try:
            self._checker.release_many([(item.claim, None) for item in claimed])
        except StoreError as error:
            log.warning("release_failed", extra={"keys": len(claimed), "error": str(error)})

    def _is_ignored(self, item: _Item, error: Exception) -> bool:
        """Keep what a handler raised; whether its consumer declares that harmless."""
        handling = self._consumer.options.exceptions.classify(error)
        item.error = error
        if handling is Handling.IGNORE:
            return True
        item.failure = failure_of(self._consumer, error, handling)
        return False

    def _completion(self, item: _Item) -> Completion:
        return Completion(item.claim, None if item.error is not None else self._consumer.encode(item.value))

    def _failed(self, item: _Item, *, attempts: int) -> None:
        wait_s = self._consumer.options.backoff.delay_s(attempts)
        self.results[item.index] = Result(Outcome.FAILED, error=item.error, retry_after_s=wait_s)

    def _process_alone(self, item: _Item) -> Result:
        request = self._consumer.alone(item.request) if self._is_one else item.request
        return process_keyed(self._consumer, self._checker, item.message, request)

    def _result_of_copy(self, item: _Item, first: Result) -> Result:
        """A later copy takes the first one's final outcome, or runs if that failed."""
        if first.outcome is Outcome.FAILED or self._consumer.disabled:
            return self._process_alone(item)
        if first.action is Action.ACK:
            return Result(Outcome.DUPLICATE, value=first.value)
        return first
