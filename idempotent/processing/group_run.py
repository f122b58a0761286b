"""GroupRun: runs the handlers of a claimed group, in one transaction or separately, and records the results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from idempotent.claims import Claim, ClaimRequest, Completion, Failure
from idempotent.errors import StoreError
from idempotent.keys import NO_KEY
from idempotent.message import Message
from idempotent.observe.events import Event
from idempotent.outcomes import Result
from idempotent.policy import Handling
from idempotent.processing.binding import Binding
from idempotent.processing.results import (
    completion_error,
    failure_of,
    processed,
    result_of_exception,
    unavailable,
)
from idempotent.processing.single import count_lost, free
from idempotent.processing.steps import STORE, Life

# A slow group completes its keys this often, so that a crash repeats at most about a second of its work.
_RECORD_EVERY_S: Final = 1.0
_NO_CLAIM: Final = Claim(NO_KEY)


@dataclass(slots=True, eq=False)
class Member:
    """One message of a group, in the order of the call."""

    index: int
    message: Message
    request: ClaimRequest
    claim: Claim = _NO_CLAIM
    returned: Any = None
    """What the handler returned."""
    error: Exception | None = None
    """What the handler raised."""
    handling: Handling = Handling.IGNORE
    """What the error means to the consumer, if there is one."""
    failure: Failure | None = None
    """What the store records of the error; None: nothing, since the consumer ignores it, or it counts no attempt."""


def place_of(member: Member) -> tuple[bytes, int]:
    """The sort key of a member: the partition and offset of its message."""
    partition, position = member.request.partition, member.request.position
    return (partition.hash if partition else b"", position.offset if position else 0)


class GroupRun:
    """One run of a group.

    Args:
        binding: the consumer, bound to its checker.

    Attributes:
        results: the results by the index of the member.
        singles: members that must be claimed and processed alone.
    """

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self.results: dict[int, Result] = {}
        self.singles: list[Member] = []

    def run(self, claimed: list[Member]) -> Life[None]:
        """Run the handlers of claimed members, and complete or release their keys."""
        if self._binding.handler.batch:
            return self._run_batch_handler(claimed)
        if self._binding.checker.group_is_atomic:
            return self._run_atomically(claimed)
        return self._run_independently(claimed)

    def undo(
        self, claimed: Sequence[Member], *, error: Exception | None = None, of: Member | None = None
    ) -> Life[None]:
        """Release the group's keys without counting attempts, and have each message processed alone.

        Args:
            claimed: the group.
            error: what a handler or the COMMIT raised, if anything: the database may be the reason.
            of: the member whose handler raised it.
        """
        transient = self._binding.transactions.is_transient
        if error is not None and (yield STORE, transient, (claimed[0].claim, error)):
            self._binding.transaction_undone([member.message for member in ([of] if of else claimed)], error)
        yield from self._release(claimed)
        self.repeat_alone(claimed)

    def repeat_alone(self, members: Sequence[Member]) -> None:
        """Have these members claimed and processed alone."""
        self._binding.observers.count(self._binding.name, Event.GROUP_REPEATED)
        self.singles.extend(members)

    def _run_batch_handler(self, claimed: list[Member]) -> Life[None]:
        """Call the handler once for all messages: all effects happen, or none."""
        messages = [member.message for member in claimed]
        try:
            yield self._binding.run_step, self._binding.calls.batch, (claimed[0].claim, messages)
        except Exception as error:
            yield from self.undo(claimed, error=error)
            return
        except BaseException:
            yield from self._interrupted(claimed)
            raise
        yield from self._record(claimed, claimed)

    def _run_atomically(self, claimed: list[Member]) -> Life[None]:
        """Run all handlers in one transaction."""
        ran: list[Member] = []
        raised: list[Member] = []
        invoke = self._invoke_isolated if self._binding.transactions.isolates else self._invoke
        for member in claimed:
            try:
                member.returned = yield from invoke(member)
            except Exception as error:
                if not (yield from self._survives(member, error, ran, raised)):
                    yield from self.undo(claimed, error=error, of=member)
                    return
            except BaseException:
                yield from self._interrupted(claimed, member)
                raise
            else:
                ran.append(member)
        if not ran:
            yield from self._release(claimed)
        if (yield from self._record(ran, claimed)):
            yield from self._free(raised)

    def _invoke(self, member: Member) -> Life[Any]:
        returned = yield self._binding.run_step, self._binding.calls.one, (member.claim, member.message)
        yield STORE, self._binding.transactions.flush, (member.claim,)
        return returned

    def _invoke_isolated(self, member: Member) -> Life[Any]:
        """Run a handler in a savepoint: each end of `with isolated:` is a step."""
        isolated = yield (
            STORE,
            self._binding.transactions.isolated,
            (member.claim, self._binding.handler.session_type),
        )
        yield STORE, isolated.__enter__, ()
        try:
            returned = yield from self._invoke(member)
        except BaseException as error:
            yield STORE, isolated.__exit__, (type(error), error, error.__traceback__)
            raise
        yield STORE, isolated.__exit__, (None, None, None)
        return returned

    def _survives(
        self, member: Member, error: Exception, ran: list[Member], raised: list[Member]
    ) -> Life[bool]:
        """Whether an atomic group can continue without the effect of a handler that raised."""
        transactions = self._binding.transactions
        if not transactions.isolates or (yield STORE, transactions.is_transient, (member.claim, error)):
            return False
        handling = self._note(member, error)
        if handling is Handling.WAIT:
            return False
        if handling is Handling.IGNORE:
            ran.append(member)
            return True
        try:
            yield STORE, transactions.forget, (member.claim,)
        except Exception:
            return False
        raised.append(member)
        return True

    def _run_independently(self, claimed: list[Member]) -> Life[None]:
        """Run the handlers one after the other; each key is completed or released by its own result."""
        ran: list[Member] = []
        raised: list[Member] = []
        recorded_at = time.monotonic()
        one = self._binding.calls.one
        for position, member in enumerate(claimed):
            try:
                member.returned = yield self._binding.run_step, one, (member.claim, member.message)
            except Exception as error:
                (ran if self._note(member, error) is Handling.IGNORE else raised).append(member)
            except BaseException:
                yield from self._record(ran, claimed)
                yield from self._free(raised)
                yield from self._release(claimed[position:], member)
                raise
            else:
                ran.append(member)
            if time.monotonic() - recorded_at > _RECORD_EVERY_S:
                yield from self._record(ran, claimed)
                ran = []
                recorded_at = time.monotonic()
        yield from self._record(ran, claimed)
        yield from self._free(raised)

    def _record(self, ran: Sequence[Member], claimed: Sequence[Member]) -> Life[bool]:
        """Complete these keys; False: an atomic group could not commit, and all its messages will run alone."""
        if not ran:
            return True
        kept: Sequence[bool] = [True] * len(ran)
        error: Exception | None = None
        completions = [Completion(member.claim) for member in ran]
        try:
            completions = self._completions(ran)
            kept = yield STORE, self._binding.protocol.complete_many, (completions,)
        except BaseException as raised:
            error = yield from completion_error(self._binding, completions, raised)
        if isinstance(error, StoreError):
            self._binding.observers.count(self._binding.name, Event.COMPLETION_NOT_RECORDED, len(ran))
            for member in ran:
                self.results[member.index] = unavailable(error)
        elif error is not None:
            # Rolled back, or refused at COMMIT: running each message alone shows which one is at fault.
            yield from self.undo(claimed, error=error)
            return False
        else:
            for member, owned in zip(ran, kept, strict=True):
                if not owned:
                    count_lost(self._binding, member.message, member.claim)
                self.results[member.index] = (
                    processed(member.returned)
                    if member.error is None
                    else result_of_exception(self._binding, member.error, member.handling)
                )
        return True

    def _free(self, raised: Sequence[Member]) -> Life[None]:
        """Release the keys of handlers that raised, and count the attempts, but for exceptions that count none."""
        releases = [(member.message, member.claim, member.failure) for member in raised]
        released = yield from free(self._binding, releases)
        for member, answer in zip(raised, released, strict=True):
            self.results[member.index] = result_of_exception(
                self._binding, member.error, member.handling, member.failure, answer
            )

    def _interrupted(self, claimed: Sequence[Member], running: Member | None = None) -> Life[None]:
        yield STORE, self._binding.transactions.interrupted, (claimed[0].claim,)
        yield from self._release(claimed, running)

    def _release(self, claimed: Sequence[Member], running: Member | None = None) -> Life[None]:
        """Free keys without counting an attempt; `running`: whose handler was interrupted."""
        cancelled = self._binding.options.cancelled
        yield from free(
            self._binding,
            [(member.message, member.claim, cancelled if member is running else None) for member in claimed],
        )

    def _note(self, member: Member, error: Exception) -> Handling:
        """Note a handler's exception. Returns what it means to the consumer."""
        member.error = error
        member.handling = self._binding.options.exceptions.classify(error)
        member.failure = failure_of(self._binding, member.message, error, member.handling)
        return member.handling

    def _completions(self, ran: Sequence[Member]) -> list[Completion]:
        if not self._binding.options.store_result:
            return [Completion(member.claim) for member in ran]
        encode = self._binding.encode
        return [
            Completion(
                member.claim, encode(member.returned, member.message) if member.error is None else None
            )
            for member in ran
        ]
