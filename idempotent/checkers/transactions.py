"""TransactionHooks: what a checker adds whose claims live in transactions with the handlers' effects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.desk import ClaimDesk
from idempotent.claims import Claim, ClaimRequest
from idempotent.errors import ConfigurationError


class TransactionHooks(ABC):
    """A capability of a checker: key and effect commit together."""

    isolates: bool = False
    """Whether one handler of an atomic group can be undone without the others."""

    @abstractmethod
    def claim_nothing(self) -> Claim:
        """A claim of no key, for a handler that is allowed to run without one.

        Raises:
            StoreError: the store did not answer.
        """

    @abstractmethod
    def ignore(self, request: ClaimRequest, claim: Claim) -> None:
        """Record the key although its handler raised, an exception that the consumer declares harmless.

        Raises:
            StoreError: not recorded.
        """

    @abstractmethod
    def forget(self, claim: Claim) -> None:
        """Take the key of a failed handler out of a group that goes on without it."""

    @abstractmethod
    def isolated(self, claim: Claim, takes: type | None) -> AbstractContextManager[object]:
        """Contain what one handler of an atomic group does, where `isolates` says that the checker can.

        Args:
            claim: the handler's claim.
            takes: the type of the handler's second parameter; None: it has none.
        """

    @abstractmethod
    def is_transient(self, claim: Claim, error: Exception) -> bool:
        """Whether the handler's exception is the store's fault and the claim is worth a fresh try."""

    @abstractmethod
    def handler_argument(self, claim: Claim, kind: type) -> Any:
        """The session or connection a handler takes as its second parameter.

        Raises:
            ConfigurationError: the handler asks for a type that this checker does not have.
        """


class NoTransactions(TransactionHooks):
    """For a checker without that capability: a claim is a record of its own.

    Args:
        desk: the checker's.
    """

    def __init__(self, desk: ClaimDesk) -> None:
        self._desk = desk

    def claim_nothing(self) -> Claim:
        return Claim(None)

    def ignore(self, request: ClaimRequest, claim: Claim) -> None:
        del request
        self._desk.complete(claim)

    def forget(self, claim: Claim) -> None:
        del claim

    def isolated(self, claim: Claim, takes: type | None) -> AbstractContextManager[object]:
        del claim, takes
        return nullcontext()

    def is_transient(self, claim: Claim, error: Exception) -> bool:
        del claim, error
        return False

    def handler_argument(self, claim: Claim, kind: type) -> Any:
        del claim
        raise ConfigurationError(f"the checker has no {kind.__name__} to hand to a handler")


def transactions_of(checker: AbstractIdempotentChecker) -> TransactionHooks:
    """What a checker can do with transactions."""
    return checker if isinstance(checker, TransactionHooks) else NoTransactions(checker.desk)
