"""Many messages together: one statement claims them, one records them, and each keeps an outcome of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from idempotent.checker import AbstractIdempotentChecker
from idempotent.claims import Claim, ClaimRequest, Completion, Failure, new_owner
from idempotent.errors import MessageError, StoreBusyError, StoreError
from idempotent.message import Message
from idempotent.observe import Event, counters
from idempotent.outcomes import Action, Outcome, Result
from idempotent.policy import Handling, OnExpiredLease
from idempotent.positions import Position
from idempotent.processing import (
    STORE_RETRY_S,
    count_lost,
    failure_of,
    mismatch,
    process_keyed,
    processed,
    refused,
    store_failed,
    without_key,
)
from idempotent.values import value

if TYPE_CHECKING:
    from idempotent.consumer import Consumer

log = logging.getLogger(__name__)

# A slow group records what is done so far, so that a crash repeats at most about this much of it.
_RECORD_EVERY_S: Final = 1.0


def process_many(
    consumer: Consumer, checker: AbstractIdempotentChecker, messages: Sequence[Message]
) -> list[Result]:
    """Process messages together; results align with the input."""
    group = _Group(consumer, checker, messages)
    group.run()
    return [group.results[index] for index in range(len(messages))]


@value
class _Item:
    """One message that is the first of its key in the group."""

    index: int
    message: Message
    request: ClaimRequest


def _place(item: _Item) -> tuple[bytes, int]:
    partition, position = item.request.partition, item.request.position
    return (partition.hash if partition else b"", position.offset if position else 0)


@value
class _Claimed:
    """An item that acquired its key."""

    item: _Item
    claim: Claim


@value
class _Ran:
    """A handler that came back: with a value, or with an exception that its consumer ignores."""

    claimed: _Claimed
    returned: Any = None
    ignored: Exception | None = None

    @property
    def result(self) -> Result:
        if self.ignored is not None:
            return Result(Outcome.IGNORED, error=self.ignored)
        return processed(self.returned)


@value
class _Raised:
    """A handler that raised."""

    claimed: _Claimed
    error: Exception
    failure: Failure


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

    def run(self) -> None:
        firsts, copies = self._collapse()
        # A claim that parks or asks is always made alone; so is one whose verdict is ignored, because what runs
        # against its verdict has a transaction of its own.
        by_itself = (
            self._consumer.options.on_expired_lease is not OnExpiredLease.RETRY or self._consumer.disabled
        )
        if len(firsts) == 1 or by_itself:
            self._alone = firsts
        elif firsts:
            claimed = self._claim(firsts)
            if claimed:
                try:
                    self._run_claimed(claimed)
                except BaseException:
                    for one in claimed:
                        self._checker.abandon(one.claim)  # whatever it is, the claims must not outlive it
                    raise
        for item in self._alone:
            self.results[item.index] = self._process_alone(item)
        for item, first in copies:
            self.results[item.index] = self._result_of_copy(item, self.results[first.index])

    def _collapse(self) -> tuple[list[_Item], list[tuple[_Item, _Item]]]:
        """Tell first deliveries of a key from later copies in the same group."""
        firsts: dict[bytes, _Item] = {}
        copies: list[tuple[_Item, _Item]] = []
        owner = new_owner()
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
        items = list(firsts.values())
        if self._checker.keeps_positions:
            # One that waited comes behind those that came later, and the handlers must not see it there.
            items.sort(key=_place)
        return items, copies

    def _claim(self, items: Sequence[_Item]) -> list[_Claimed]:
        requests = [item.request for item in items]
        try:
            decisions = self._checker.claim_many(requests)
        except StoreBusyError:
            self._repeat_alone(items)
            return []
        except StoreError as error:
            for item in items:
                self.results[item.index] = store_failed(self._consumer, self._checker, item.message, error)
            return []
        claimed = []
        for item, request, decision in zip(items, requests, decisions, strict=True):
            if decision.claim is not None:
                claimed.append(_Claimed(item, decision.claim))
            elif decision.lapsed:
                self._alone.append(item)
            else:
                self.results[item.index] = refused(
                    self._consumer, self._checker, item.message, request, decision
                )
        if self._alone and claimed and isinstance(claimed[0].item.message.position, Position):
            # What a dead process left is claimed alone, and must not come behind later messages of its partition.
            self._give_up(claimed)
            self._alone.sort(key=lambda item: item.index)
            return []
        return claimed

    def _run_claimed(self, claimed: list[_Claimed]) -> None:
        if self._consumer.handler.batch:
            self._run_batch_handler(claimed)
        elif self._checker.group_is_atomic:
            self._run_atomically(claimed)
        else:
            self._run_independently(claimed)

    def _run_batch_handler(self, claimed: list[_Claimed]) -> None:
        """One call for all: its effects stand or fall together."""
        messages = [one.item.message for one in claimed]
        try:
            self._consumer.invoke_batch(self._checker, claimed[0].claim, messages)
        except Exception:
            self._give_up(claimed)
            return
        except BaseException:
            self._release(claimed)
            raise
        self._record([_Ran(one) for one in claimed], claimed)

    def _run_atomically(self, claimed: list[_Claimed]) -> None:
        """All handlers in one transaction."""
        ran: list[_Ran] = []
        raised: list[_Raised] = []
        for one in claimed:
            try:
                with self._checker.isolated(one.claim, self._consumer.handler.takes):
                    returned = self._consumer.invoke(self._checker, one.claim, one.item.message)
            except Exception as error:
                if not self._survives(one, error, ran, raised):
                    self._give_up(claimed)
                    return
            except BaseException:
                self._release(claimed)
                raise
            else:
                ran.append(_Ran(one, returned))
        if not ran:
            self._release(claimed)
        if self._record(ran, claimed):
            self._free(raised)

    def _survives(self, one: _Claimed, error: Exception, ran: list[_Ran], raised: list[_Raised]) -> bool:
        """Whether an atomic group can go on without a handler that raised."""
        if not self._checker.isolates or self._checker.is_transient(one.claim, error):
            return False
        judged = self._judge(one, error)
        if isinstance(judged, _Ran):
            ran.append(judged)
            return True
        try:
            self._checker.forget(one.claim)
        except Exception:
            return False
        raised.append(judged)
        return True

    def _run_independently(self, claimed: list[_Claimed]) -> None:
        """Handlers one after the other, each with a claim of its own."""
        ran: list[_Ran] = []
        raised: list[_Raised] = []
        recorded_at = time.monotonic()
        for position, one in enumerate(claimed):
            try:
                returned = self._consumer.invoke(self._checker, one.claim, one.item.message)
            except Exception as error:
                judged = self._judge(one, error)
                (ran if isinstance(judged, _Ran) else raised).append(judged)  # type: ignore[arg-type]
            except BaseException:
                self._record(ran, claimed)
                self._free(raised)
                self._release(claimed[position:])
                raise
            else:
                ran.append(_Ran(one, returned))
            if time.monotonic() - recorded_at > _RECORD_EVERY_S:
                self._record(ran, claimed)
                ran = []
                recorded_at = time.monotonic()
        self._record(ran, claimed)
        self._free(raised)

    def _record(self, ran: Sequence[_Ran], claimed: Sequence[_Claimed]) -> bool:
        """Make effects final; False: an atomic group could not commit as a whole, and all of it runs one by one."""
        if not ran:
            return True
        try:
            kept = self._checker.complete_many([self._completion(one) for one in ran])
        except StoreError as error:
            counters.add(self._consumer.name, Event.COMPLETION_NOT_RECORDED, len(ran))
            for one in ran:
                self.results[one.claimed.item.index] = Result(
                    Outcome.UNAVAILABLE, error=error, retry_after_s=STORE_RETRY_S
                )
        except Exception:
            if not self._checker.group_is_atomic:
                raise
            # Doomed, or refused at COMMIT: whose fault it is shows when each runs alone.
            self._give_up(claimed)
            return False
        else:
            for one, owned in zip(ran, kept, strict=True):
                if not owned:
                    count_lost(self._consumer, one.claimed.claim)
                self.results[one.claimed.item.index] = one.result
        return True

    def _free(self, raised: list[_Raised]) -> None:
        """Release the keys of handlers that raised, and count their attempts."""
        if not raised:
            return
        try:
            released = self._checker.release_many([(one.claimed.claim, one.failure) for one in raised])
        except StoreError as error:
            log.warning("failure_not_recorded", extra={"consumer": self._consumer.name, "error": str(error)})
            for one in raised:
                self._failed(one, attempts=1)
            return
        for one, answer in zip(raised, released, strict=True):
            if answer.dead:
                self.results[one.claimed.item.index] = Result(Outcome.DEAD, error=one.error)
            else:
                self._failed(one, attempts=answer.attempts)

    def _give_up(self, claimed: Sequence[_Claimed]) -> None:
        """Undo the group, and run each message in a claim of its own. No attempt is burnt."""
        self._release(claimed)
        self._repeat_alone([one.item for one in claimed])

    def _repeat_alone(self, items: Sequence[_Item]) -> None:
        counters.add(self._consumer.name, Event.GROUP_REPEATED)
        self._alone.extend(items)

    def _release(self, claimed: Sequence[_Claimed]) -> None:
        if not claimed:
            return
        try:
            self._checker.release_many([(one.claim, None) for one in claimed])
        except StoreError as error:
            log.warning("release_failed", extra={"keys": len(claimed), "error": str(error)})

    def _judge(self, one: _Claimed, error: Exception) -> _Ran | _Raised:
        handling = self._consumer.options.exceptions.classify(error)
        if handling is Handling.IGNORE:
            return _Ran(one, ignored=error)
        return _Raised(one, error, failure_of(self._consumer, error, handling))

    def _completion(self, one: _Ran) -> Completion:
        result = None if one.ignored is not None else self._consumer.encode(one.returned)
        return Completion(one.claimed.claim, result)

    def _failed(self, one: _Raised, *, attempts: int) -> None:
        wait_s = self._consumer.options.backoff.delay_s(attempts)
        self.results[one.claimed.item.index] = Result(Outcome.FAILED, error=one.error, retry_after_s=wait_s)

    def _process_alone(self, item: _Item) -> Result:
        request = self._consumer.alone(item.request)
        return process_keyed(self._consumer, self._checker, item.message, request)

    def _result_of_copy(self, item: _Item, first: Result) -> Result:
        """A later copy takes the first one's final outcome, or runs if that failed."""
        if first.outcome is Outcome.FAILED or self._consumer.disabled:
            return self._process_alone(item)
        if first.action is Action.ACK:
            return Result(Outcome.DUPLICATE, value=first.value)
        return first
