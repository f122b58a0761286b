"""GroupRun: runs the handlers of a claimed group, together or one after the other, and records what came of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Final

from idempotent.claims import Completion
from idempotent.errors import StoreError
from idempotent.observe.events import Event
from idempotent.outcomes import Outcome, Result
from idempotent.policy import Handling
from idempotent.processing.binding import Binding
from idempotent.processing.members import Member, result_of
from idempotent.processing.results import failure_of, unavailable
from idempotent.processing.single import count_lost

log = logging.getLogger(__name__)

# A slow group records what is done so far, so that a crash repeats at most about this much of it.
_RECORD_EVERY_S: Final = 1.0


class GroupRun:
    """One run of a group.

    Args:
        binding: of the consumer.

    Attributes:
        results: by the members' index.
        alone: members that must be processed in claims of their own.
    """

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self.results: dict[int, Result] = {}
        self.alone: list[Member] = []

    def run(self, claimed: list[Member]) -> None:
        """Run the handlers of claimed members, and record or free their keys."""
        try:
            self._run(claimed)
        except BaseException:
            for one in claimed:
                self._binding.desk.abandon(one.claim)  # the claims must not outlive the error
            raise

    def give_up(self, claimed: Sequence[Member]) -> None:
        """Undo the group, and leave each message to a claim of its own. No attempt is counted."""
        self._release(claimed)
        self.repeat_alone(claimed)

    def repeat_alone(self, members: Sequence[Member]) -> None:
        """Leave these to claims of their own."""
        self._binding.observers.count(self._binding.name, Event.GROUP_REPEATED)
        self.alone.extend(members)

    def _run(self, claimed: list[Member]) -> None:
        if self._binding.handler.batch:
            self._run_batch_handler(claimed)
        elif self._binding.checker.group_is_atomic:
            self._run_atomically(claimed)
        else:
            self._run_independently(claimed)

    def _run_batch_handler(self, claimed: list[Member]) -> None:
        """One call for all: its effects stand or fall together."""
        messages = [one.message for one in claimed]
        try:
            self._binding.invoke_batch(claimed[0].claim, messages)
        except Exception:
            self.give_up(claimed)
            return
        except BaseException:
            self._release(claimed)
            raise
        self._record(claimed, claimed)

    def _run_atomically(self, claimed: list[Member]) -> None:
        """All handlers in one transaction."""
        ran: list[Member] = []
        raised: list[Member] = []
        invoke = self._invoke_isolated if self._binding.transactions.isolates else self._invoke
        for one in claimed:
            try:
                one.returned = invoke(one)
            except Exception as error:
                if not self._survives(one, error, ran, raised):
                    self.give_up(claimed)
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

    def _invoke(self, one: Member) -> Any:
        return self._binding.invoke(one.claim, one.message)

    def _invoke_isolated(self, one: Member) -> Any:
        with self._binding.transactions.isolated(one.claim, self._binding.handler.takes):
            return self._binding.invoke(one.claim, one.message)

    def _survives(self, one: Member, error: Exception, ran: list[Member], raised: list[Member]) -> bool:
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

    def _run_independently(self, claimed: list[Member]) -> None:
        """Handlers one after the other, each with a claim of its own."""
        ran: list[Member] = []
        raised: list[Member] = []
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

    def _record(self, ran: Sequence[Member], claimed: Sequence[Member]) -> bool:
        """Make effects final; False: an atomic group could not commit as a whole, and all of it runs one by one."""
        if not ran:
            return True
        try:
            kept = self._binding.desk.complete_many(self._completions(ran))
        except StoreError as error:
            self._binding.observers.count(self._binding.name, Event.COMPLETION_NOT_RECORDED, len(ran))
            for one in ran:
                self.results[one.index] = unavailable(error)
        except Exception:
            if not self._binding.checker.group_is_atomic:
                raise
            # Doomed, or refused at COMMIT: whose fault it is shows when each runs alone.
            self.give_up(claimed)
            return False
        else:
            for one, owned in zip(ran, kept, strict=True):
                if not owned:
                    count_lost(self._binding, one.claim)
                self.results[one.index] = result_of(one)
        return True

    def _free(self, raised: Sequence[Member]) -> None:
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

    def _release(self, claimed: Sequence[Member]) -> None:
        if not claimed:
            return
        try:
            self._binding.desk.release_many([(one.claim, None) for one in claimed])
        except StoreError as error:
            log.warning("release_failed", extra={"keys": len(claimed), "error": str(error)})

    def _is_ignored(self, one: Member, error: Exception) -> bool:
        """Whether what a handler raised counts as processed; noted either way."""
        handling = self._binding.options.exceptions.classify(error)
        one.error = error
        if handling is not Handling.IGNORE:
            one.failure = failure_of(self._binding, error, handling)
        return one.failure is None

    def _completions(self, ran: Sequence[Member]) -> list[Completion]:
        if not self._binding.options.store_result:
            return [Completion(one.claim) for one in ran]
        encode = self._binding.encode
        return [Completion(one.claim, encode(one.returned) if one.error is None else None) for one in ran]

    def _failed(self, one: Member, *, attempts: int) -> None:
        wait_s = self._binding.options.backoff.delay_s(attempts)
        self.results[one.index] = Result(Outcome.FAILED, error=one.error, retry_after_s=wait_s)
