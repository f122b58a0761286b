"""Waiting: writes down which messages wait for their key, as soon as that is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.claims import ClaimRequest, Verdict
from idempotent.consumer import Consumer
from idempotent.errors import StoreError
from idempotent.message import Message
from idempotent.outcomes import Action, Result
from idempotent.torture.journal import Journal, What


class Waiting:
    """Later messages of a group do not wait for one whose key somebody else has, so it may come behind them.

    That is written when the claim is answered. When its group is done would be too late: by then the later ones have
    happened, and this process may have been killed in between.

    Args:
        consumer: whose messages; changed in place.
        journal: where to write.
    """

    def __init__(self, consumer: Consumer, journal: Journal) -> None:
        """Know the messages of each group before it is claimed."""
        self._consumer = consumer
        self._journal = journal
        self._messages: dict[bytes, Message] = {}
        self._process_one, self._process_many = consumer.process, consumer.process_many
        # A worker gives a group of one to `process`.
        for name, process in (("process", self._process_alone), ("process_many", self._process)):
            setattr(consumer, name, process)

    def watch(self, checker: AbstractIdempotentChecker) -> None:
        """Look at the answers to its claims; changed in place."""
        for hook, requests_of in (("_claim", lambda request: [request]), ("_claim_many", list)):
            setattr(checker, hook, self._claiming(getattr(checker, hook), requests_of))

    def _process_alone(self, message: Message) -> Result:
        return self._process([message])[0]

    def _process(self, messages: Sequence[Message]) -> list[Result]:
        requests = [self._consumer.binding.requests.of(message) for message in messages]
        self._messages.update(zip((request.key.hash for request in requests), messages, strict=True))
        results = [self._process_one(messages[0])] if len(messages) == 1 else self._process_many(messages)
        for request, result in zip(requests, results, strict=True):
            if result.action is Action.HOLD:
                self._write(request)
        return results

    def _claiming(
        self, claim: Callable[[Any], Any], requests_of: Callable[[Any], list[ClaimRequest]]
    ) -> Callable[[Any], Any]:
        def noted(asked: Any) -> Any:
            requests = requests_of(asked)
            try:
                answer = claim(asked)
            except StoreError:
                for request in requests:
                    self._write(request)
                raise
            decisions = answer if isinstance(answer, list) else [answer]
            for request, decision in zip(requests, decisions, strict=True):
                # What has lapsed is claimed anew at once, and may not be late.
                if decision.verdict is Verdict.IN_PROGRESS and not decision.lapsed:
                    self._write(request)
            return answer

        return noted

    def _write(self, request: ClaimRequest) -> None:
        message = self._messages.get(request.key.hash)  # the collector of garbage claims, too
        if message is not None:
            self._journal.write(What.HELD, id=message.id, position=str(message.position or ""))
