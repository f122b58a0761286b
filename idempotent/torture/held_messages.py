"""HeldMessages: writes down which messages wait for their key, as soon as that is known."""

from __future__ import annotations

from collections.abc import Sequence

from idempotent.claims import ClaimRequest, Decision, Verdict
from idempotent.errors import StoreError
from idempotent.message import Message
from idempotent.observe.observers import Observer
from idempotent.outcomes import Action, Result
from idempotent.torture.journal import Journal, What


class HeldMessages(Observer):
    """Writes down the messages that may take effect after later ones of their partition.

    Later messages of a group do not wait for one whose key another delivery has. That is written when the claim is
    answered: when the group is done, the later ones have happened, and this process may have been killed in between.

    Args:
        journal: where to write.
    """

    def __init__(self, journal: Journal) -> None:
        """Write nothing yet."""
        self._journal = journal

    def claimed(
        self, consumer: str, message: Message, request: ClaimRequest, answer: Decision | StoreError
    ) -> None:
        del consumer, request
        # A lapsed key is claimed again immediately, and may not be late.
        if isinstance(answer, StoreError) or (answer.verdict is Verdict.IN_PROGRESS and not answer.lapsed):
            self._write(message)

    def processed(self, consumer: str, messages: Sequence[Message], results: Sequence[Result]) -> None:
        del consumer
        for message, result in zip(messages, results, strict=True):
            if result.action is Action.HOLD:
                self._write(message)

    def _write(self, message: Message) -> None:
        self._journal.write(What.HELD, id=message.id, position=str(message.position or ""))
