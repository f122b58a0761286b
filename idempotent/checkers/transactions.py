"""TransactionHooks: the hooks of a checker whose claims commit in the transactions of the handlers' effects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.desk import ClaimDesk
from idempotent.claims import Claim, ClaimRequest
from idempotent.errors import ConfigurationError


class TransactionHooks(ABC):
    """The capability of a checker to commit key and effect together."""

    isolates: bool = False
    """Whether the effect of one handler of an atomic group can be rolled back without the others."""

    @abstractmethod
    def claim_nothing(self) -> Claim:
        """A claim without a key, for a handler that may run without one.

        Raises:
            StoreError: the store did not answer.
        """

    @abstractmethod
    def ignore(self, request: ClaimRequest, claim: Claim) -> None:
        """Record the key as done although its handler raised: the consumer ignores the exception.

        Raises:
            StoreError: the store did not record the key.
        """

    @abstractmethod
    def forget(self, claim: Claim) -> None:
        """Remove the key of a failed handler from a group that continues without it."""

    @abstractmethod
    def isolated(self, claim: Claim, takes: type | None) -> AbstractContextManager[object]:
        """Roll back the effect of one handler of an atomic group if it raises. Only used with `isolates`.

        Args:
            claim: the handler's claim.
            takes: the type of the handler's second parameter; None: it has no second parameter.
        """

    @abstractmethod
    def is_transient(self, claim: Claim, error: Exception) -> bool:
        """Whether the store caused the handler's exception, so that the message is worth another try."""

    @abstractmethod
    def handler_argument(self, claim: Claim, kind: type) -> Any:
        """The session or connection for a handler's second parameter.

        Raises:
            ConfigurationError: this checker does not provide that type.
        """


class NoTransactions(TransactionHooks):
    """The hooks of a checker without that capability: its claims are separate from the handlers' effects.

    Args:
        desk: the checker's desk.
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
    """The transaction hooks of a checker; `NoTransactions` if it has none."""
    return checker if isinstance(checker, TransactionHooks) else NoTransactions(checker.desk)
