"""Many messages together: one statement claims their keys, one completes them, and each has its own outcome.

See `steps` for what is yielded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from typing import Final, TypeVar, overload

from idempotent.claims import ClaimRequest, Decision, new_owner
from idempotent.errors import MessageError, StoreBusyError, StoreError
from idempotent.message import Message, Position
from idempotent.outcomes import Action, Outcome, Result
from idempotent.policy import OnExpiredLease
from idempotent.processing.binding import Binding
from idempotent.processing.group_run import GroupRun, Member, place_of
from idempotent.processing.results import answered, mismatch, unavailable
from idempotent.processing.single import process_one, store_failed, without_key
from idempotent.processing.steps import CLAIM_MANY, STORE, Life, timed

R = TypeVar("R")
T = TypeVar("T")

# A single message is claimed alone.
_MIN_GROUP: Final = 2


def process_many(binding: Binding, messages: Sequence[Message]) -> Life[list[Result]]:
    """Process messages together; results align with the input."""
    group = _Group(binding, messages)
    try:
        yield from group.run()
    finally:
        if binding.calls.began:
            for message in messages:
                binding.calls.began.pop(id(message), None)
    return [group.results[index] for index in range(len(messages))]


class _Group:
    """The messages of one call of `process_many`, and their results so far."""

    def __init__(self, binding: Binding, messages: Sequence[Message]) -> None:
        self._binding = binding
        self._messages = messages
        self._owner = new_owner()
        self._decisions: list[Decision] = []
        self._run = GroupRun(binding)
        self.results = self._run.results
        self._copies: list[tuple[Member, Member]] = []
        self._keyless: list[tuple[int, MessageError]] = []

    def run(self) -> Life[None]:
        firsts = self._firsts()
        if self._binding.checker.remembers.by_position:
            # Restore partition order: a held message may arrive after its successors.
            firsts = iter(sorted(firsts, key=place_of))
        yield from self._run_each(firsts)
        for index, error in self._keyless:
            self.results[index] = yield from without_key(self._binding, self._messages[index], error)
        for member, first in self._copies:
            self.results[member.index] = yield from self._result_of_copy(member, self.results[first.index])

    def _run_each(self, firsts: Iterator[Member]) -> Life[None]:
        """Run the first message of each key: together, and then those that have to be claimed alone."""
        # A consumer that parks or is asked claims each key alone; so does one that ignores verdicts, because an
        # unprotected run opens its own transaction.
        always_alone = (
            self._binding.options.on_expired_lease is not OnExpiredLease.RETRY or self._binding.disabled
        )
        start = list(islice(firsts, _MIN_GROUP))
        if len(start) < _MIN_GROUP or always_alone:
            self._run.singles += [*start, *firsts]
        else:
            try:
                claimed = yield from self._timed(self._claim(chain(start, firsts)))
                if claimed:
                    yield from self._timed(self._run.run(claimed))
            except BaseException:
                yield from self._abandon()
                raise
        for member in self._run.singles:
            self.results[member.index] = yield from self._process_alone(member)

    def _timed(self, life: Life[R]) -> Life[R]:
        binding = self._binding
        if not binding.observers.watch_times:
            return life
        return timed(life, binding.name, binding.stages, binding.observers)

    def _firsts(self) -> Iterator[Member]:
        """The first message of each key. Later copies go to `_copies`, messages without a key to `_keyless`."""
        firsts: dict[bytes, Member] = {}
        for index, message in enumerate(self._messages):
            try:
                request = self._binding.requests.of(message, self._owner)
            except MessageError as error:
                self._keyless.append((index, error))
                continue
            member = Member(index, message, request)
            first = firsts.setdefault(request.key.hash, member)
            if first is member:
                yield member
            elif request.fingerprint != first.request.fingerprint and not self._binding.disabled:
                self.results[index] = Result(
                    Outcome.REJECTED, error=mismatch(request, first.request.fingerprint)
                )
            else:
                self._copies.append((member, first))

    def _claim(self, firsts: Iterator[Member]) -> Life[list[Member]]:
        members: list[Member] = []

        def requests() -> Iterator[ClaimRequest]:
            for member in firsts:
                members.append(member)
                yield member.request

        # Of an `async def` consumer the claim may run in another thread, where its key function must not.
        asked: Sequence[ClaimRequest] = (
            list(requests()) if self._binding.handler.is_async else Streamed(requests())
        )
        try:
            self._decisions = yield CLAIM_MANY, self._binding.protocol.claim_many, (asked,)
        except StoreBusyError:
            self._run.repeat_alone([*members, *firsts])
            return []
        except StoreError as error:
            members += firsts
            self._report_claims(members, repeat(error))
            for member in members:
                self.results[member.index] = yield from store_failed(self._binding, member.message, error)
            # A signal handler may have raised in `_firsts`, and ended it.
            for index in range(len(self._messages)):
                self.results.setdefault(index, unavailable(error))
            return []
        self._report_claims(members, self._decisions)
        return (yield from self._take(members, self._decisions))

    def _abandon(self) -> Life[None]:
        """Abandon the claims of the group, which must not outlive an error."""
        protocol = self._binding.protocol
        try:
            for decision in self._decisions:
                if decision.claim is not None:
                    yield STORE, protocol.abandon, (decision.claim,)
        finally:
            protocol.abandon_all_of(self._owner)

    def _take(self, members: list[Member], decisions: list[Decision]) -> Life[list[Member]]:
        """The members whose handlers run together; the others get a result, or are left to claims of their own."""
        claimed = []
        for member, decision in zip(members, decisions, strict=True):
            if decision.claim is not None:
                member.claim = decision.claim
                claimed.append(member)
            elif decision.lapsed:
                self._run.singles.append(member)
            else:
                # Without the kill switch, which claims each key alone.
                self.results[member.index] = answered(self._binding, member.message, member.request, decision)
        if self._run.singles and claimed and isinstance(claimed[0].message.position, Position):
            # A lapsed message is claimed alone, and must run before the later messages of its partition.
            yield from self._run.undo(claimed)
            self._run.singles.sort(key=lambda member: member.index)
            return []
        return claimed

    def _report_claims(self, members: Sequence[Member], answers: Iterable[Decision | StoreError]) -> None:
        observers = self._binding.observers
        if observers.watch_claims:
            for member, answer in zip(members, answers, strict=False):
                observers.claimed(self._binding.name, member.message, member.request, answer)

    def _process_alone(self, member: Member) -> Life[Result]:
        return process_one(self._binding, member.message, member.request)

    def _result_of_copy(self, member: Member, first: Result) -> Life[Result]:
        """A later copy takes the final outcome of the first message, or runs if that failed or had an unfit body."""
        if first.outcome in (Outcome.FAILED, Outcome.REJECTED) or self._binding.disabled:
            return (yield from self._process_alone(member))
        if first.action is Action.ACK:
            return Result(Outcome.DUPLICATE, value=first.value)
        return first


class Streamed(Sequence[T]):
    """The elements of an iterator as a sequence; each is made when it is first read.

    It can be read many times. Asking for its length, or for an element by its index, makes all elements first.

    Args:
        source: makes the elements; it is read once, as far as the furthest reader needs.
    """

    __slots__ = ("_made", "_source")

    def __init__(self, source: Iterator[T]) -> None:
        self._source = source
        self._made: list[T] = []

    def __iter__(self) -> Iterator[T]:
        made, source = self._made, self._source
        index = 0
        while True:
            if index == len(made):  # another reader may be further
                for element in source:
                    made.append(element)
                    break
                else:
                    return
            yield made[index]
            index += 1

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def __len__(self) -> int:
        self._made.extend(self._source)
        return len(self._made)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        self._made.extend(self._source)
        return self._made[index]
