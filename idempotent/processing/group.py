"""Many messages together: one statement claims them, one records them, and each keeps an outcome of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

from idempotent.claims import Claim, ClaimRequest, Completion, Failure, new_owner
from idempotent.errors import MessageError, StoreBusyError, StoreError
from idempotent.message import Message, Position
from idempotent.observe.counting import Event, counters
from idempotent.outcomes import Action, Outcome, Result
from idempotent.policy import Handling, OnExpiredLease
from idempotent.processing.binding import Binding
from idempotent.processing.single import (
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
from idempotent.processing.streamed import Streamed

log = logging.getLogger(__name__)

# A slow group records what is done so far, so that a crash repeats at most about this much of it.
_RECORD_EVERY_S: Final = 1.0
# One message is no group: it is claimed alone.
_SMALLEST: Final = 2


def process_many(binding: Binding, messages: Sequence[Message]) -> list[Result]:
    """Process messages together; results align with the input."""
    group = _Group(binding, messages)
    group.run()
    return [group.results[index] for index in range(len(messages))]


_NO_CLAIM: Final = Claim(None)


@dataclass(slots=True, eq=False)
class _Member:
    """One message of the group, and what has become of it so far."""

    index: int
    message: Message
    request: ClaimRequest
    claim: Claim = _NO_CLAIM
    returned: Any = None
    """What its handler came back with, if it did."""
    error: Exception | None = None
    """What its handler raised."""
    failure: Failure | None = None
    """What the store keeps of that; None: its consumer ignores it."""


def _place(member: _Member) -> tuple[bytes, int]:
    partition, position = member.request.partition, member.request.position
    return (partition.hash if partition else b"", position.offset if position else 0)


def _result(member: _Member) -> Result:
    """Of a member whose handler came back, or raised what its consumer ignores."""
    return processed(member.returned) if member.error is None else Result(Outcome.IGNORED, error=member.error)


class _Group:
    """The messages of one call and what has become of them so far."""

    def __init__(self, binding: Binding, messages: Sequence[Message]) -> None:
        self._binding = binding
        self._messages = messages
        self.results: dict[int, Result] = {}
        self._alone: list[_Member] = []
        self._copies: list[tuple[_Member, _Member]] = []
        self._keyless: list[tuple[int, MessageError]] = []

    def run(self) -> None:
        firsts = self._firsts()
        if self._binding.checker.keeps_positions:
            # One that waited comes behind those that came later, and the handlers must not see it there.
            firsts = iter(sorted(firsts, key=_place))
        # A claim that parks or asks is always made alone; so is one whose verdict is ignored, because what runs
        # against its verdict has a transaction of its own.
        by_itself = (
            self._binding.options.on_expired_lease is not OnExpiredLease.RETRY or self._binding.disabled
        )
        start = list(islice(firsts, _SMALLEST))
        if len(start) < _SMALLEST or by_itself:
            self._alone = [*start, *firsts]
        else:
            claimed = self._claim(chain(start, firsts))
            if claimed:
                try:
                    self._run_claimed(claimed)
                except BaseException:
                    for one in claimed:
                        self._binding.desk.abandon(
                            one.claim
                        )  # whatever it is, the claims must not outlive it
                    raise
        for member in self._alone:
            self.results[member.index] = self._process_alone(member)
        for index, error in self._keyless:
            self.results[index] = without_key(self._binding, self._messages[index], error)
        for member, first in self._copies:
            self.results[member.index] = self._result_of_copy(member, self.results[first.index])

    def _firsts(self) -> Iterator[_Member]:
        """The first delivery of each key. Later copies in the same group are put aside."""
        firsts: dict[bytes, _Member] = {}
        owner = new_owner()
        for index, message in enumerate(self._messages):
            try:
                request = self._binding.requests.of(message, owner)
            except MessageError as error:
                self._keyless.append((index, error))
                continue
            member = _Member(index, message, request)
            first = firsts.setdefault(request.key.hash, member)
            if first is member:
                yield member
            elif request.fingerprint != first.request.fingerprint and not self._binding.disabled:
                self.results[index] = Result(
                    Outcome.REJECTED, error=mismatch(request, first.request.fingerprint)
                )
            else:
                self._copies.append((member, first))

    def _claim(self, firsts: Iterator[_Member]) -> list[_Member]:
        members: list[_Member] = []

        def requests() -> Iterator[ClaimRequest]:
            for member in firsts:
                members.append(member)
                yield member.request

        try:
            decisions = self._binding.desk.claim_many(Streamed(requests()))
        except StoreBusyError:
            self._repeat_alone([*members, *firsts])
            return []
        except StoreError as error:
            for member in (*members, *firsts):
                self.results[member.index] = store_failed(self._binding, member.message, error)
            return []
        claimed = []
        for member, decision in zip(members, decisions, strict=True):
            if decision.claim is not None:
                member.claim = decision.claim
                claimed.append(member)
            elif decision.lapsed:
                self._alone.append(member)
            else:
                self.results[member.index] = refused(self._binding, member.message, member.request, decision)
        if self._alone and claimed and isinstance(claimed[0].message.position, Position):
            # What a dead process left is claimed alone, and must not come behind later messages of its partition.
            self._give_up(claimed)
            self._alone.sort(key=lambda member: member.index)
            return []
        return claimed

    def _run_claimed(self, claimed: list[_Member]) -> None:
        if self._binding.handler.batch:
            self._run_batch_handler(claimed)
        elif self._binding.checker.group_is_atomic:
            self._run_atomically(claimed)
        else:
            self._run_independently(claimed)

    def _run_batch_handler(self, claimed: list[_Member]) -> None:
        """One call for all: its effects stand or fall together."""
        messages = [one.message for one in claimed]
        try:
            self._binding.invoke_batch(claimed[0].claim, messages)
        except Exception:
            self._give_up(claimed)
            return
        except BaseException:
            self._release(claimed)
            raise
        self._record(claimed, claimed)

    def _run_atomically(self, claimed: list[_Member]) -> None:
        """All handlers in one transaction."""
        ran: list[_Member] = []
        raised: list[_Member] = []
        invoke = self._invoke_isolated if self._binding.transactions.isolates else self._invoke
        for one in claimed:
            try:
                one.returned = invoke(one)
            except Exception as error:
                if not self._survives(one, error, ran, raised):
                    self._give_up(claimed)
                    return
            except BaseException:
                self._release(claimed)
                raise
            else:
                ran.append(one)
        if not ran:
            self._release(claimed)
        if self._record(ran, claimed):
            self._free(raised)

    def _invoke(self, one: _Member) -> Any:
        return self._binding.invoke(one.claim, one.message)

    def _invoke_isolated(self, one: _Member) -> Any:
        with self._binding.transactions.isolated(one.claim, self._binding.handler.takes):
            return self._binding.invoke(one.claim, one.message)

    def _survives(self, one: _Member, error: Exception, ran: list[_Member], raised: list[_Member]) -> bool:
        """Whether an atomic group can go on without a handler that raised."""
        if not self._binding.transactions.isolates or self._binding.transactions.is_transient(
            one.claim, error
        ):
            return False
        if self._is_ignored(one, error):
            ran.append(one)
            return True
        try:
            self._binding.transactions.forget(one.claim)
        except Exception:
            return False
        raised.append(one)
        return True

    def _run_independently(self, claimed: list[_Member]) -> None:
        """Handlers one after the other, each with a claim of its own."""
        ran: list[_Member] = []
        raised: list[_Member] = []
        recorded_at = time.monotonic()
        for position, one in enumerate(claimed):
            try:
                one.returned = self._binding.invoke(one.claim, one.message)
            except Exception as error:
                (ran if self._is_ignored(one, error) else raised).append(one)
            except BaseException:
                self._record(ran, claimed)
                self._free(raised)
                self._release(claimed[position:])
                raise
            else:
                ran.append(one)
            if time.monotonic() - recorded_at > _RECORD_EVERY_S:
                self._record(ran, claimed)
                ran = []
                recorded_at = time.monotonic()
        self._record(ran, claimed)
        self._free(raised)

    def _record(self, ran: Sequence[_Member], claimed: Sequence[_Member]) -> bool:
        """Make effects final; False: an atomic group could not commit as a whole, and all of it runs one by one."""
        if not ran:
            return True
        try:
            kept = self._binding.desk.complete_many(self._completions(ran))
        except StoreError as error:
            counters.add(self._binding.name, Event.COMPLETION_NOT_RECORDED, len(ran))
            for one in ran:
                self.results[one.index] = Result(
                    Outcome.UNAVAILABLE, error=error, retry_after_s=STORE_RETRY_S
                )
        except Exception:
            if not self._binding.checker.group_is_atomic:
                raise
            # Doomed, or refused at COMMIT: whose fault it is shows when each runs alone.
            self._give_up(claimed)
            return False
        else:
            for one, owned in zip(ran, kept, strict=True):
                if not owned:
                    count_lost(self._binding, one.claim)
                self.results[one.index] = _result(one)
        return True

    def _free(self, raised: Sequence[_Member]) -> None:
        """Release the keys of handlers that raised, and count their attempts."""
        if not raised:
            return
        try:
            released = self._binding.desk.release_many([(one.claim, one.failure) for one in raised])
        except StoreError as error:
            log.warning("failure_not_recorded", extra={"consumer": self._binding.name, "error": str(error)})
            for one in raised:
                self._failed(one, attempts=1)
            return
        for one, answer in zip(raised, released, strict=True):
            if answer.dead:
                self.results[one.index] = Result(Outcome.DEAD, error=one.error)
            else:
                self._failed(one, attempts=answer.attempts)

    def _give_up(self, claimed: Sequence[_Member]) -> None:
        """Undo the group, and run each message in a claim of its own. No attempt is burnt."""
        self._release(claimed)
        self._repeat_alone(claimed)

    def _repeat_alone(self, members: Sequence[_Member]) -> None:
        counters.add(self._binding.name, Event.GROUP_REPEATED)
        self._alone.extend(members)

    def _release(self, claimed: Sequence[_Member]) -> None:
        if not claimed:
            return
        try:
            self._binding.desk.release_many([(one.claim, None) for one in claimed])
        except StoreError as error:
            log.warning("release_failed", extra={"keys": len(claimed), "error": str(error)})

    def _is_ignored(self, one: _Member, error: Exception) -> bool:
        """Whether what a handler raised counts as processed; noted either way."""
        handling = self._binding.options.exceptions.classify(error)
        one.error = error
        if handling is not Handling.IGNORE:
            one.failure = failure_of(self._binding, error, handling)
        return one.failure is None

    def _completions(self, ran: Sequence[_Member]) -> list[Completion]:
        if not self._binding.options.store_result:
            return [Completion(one.claim) for one in ran]
        encode = self._binding.encode
        return [Completion(one.claim, encode(one.returned) if one.error is None else None) for one in ran]

    def _failed(self, one: _Member, *, attempts: int) -> None:
        wait_s = self._binding.options.backoff.delay_s(attempts)
        self.results[one.index] = Result(Outcome.FAILED, error=one.error, retry_after_s=wait_s)

    def _process_alone(self, member: _Member) -> Result:
        request = self._binding.requests.alone(member.request)
        return process_keyed(self._binding, member.message, request)

    def _result_of_copy(self, member: _Member, first: Result) -> Result:
        """A later copy takes the first one's final outcome, or runs if that failed."""
        if first.outcome is Outcome.FAILED or self._binding.disabled:
            return self._process_alone(member)
        if first.action is Action.ACK:
            return Result(Outcome.DUPLICATE, value=first.value)
        return first
