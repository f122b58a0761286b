"""TransactionHooks: the hooks of a checker whose claims commit in the transactions of the handlers' effects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.protocol import ClaimProtocol
from idempotent.claims import Claim, ClaimRequest, Completion, Verdict
from idempotent.errors import ConfigurationError, StoreBusyError
from idempotent.keys import NO_KEY
from idempotent.values import changed


class TransactionHooks(ABC):
    """The capability of a checker to commit key and effect together."""

    isolates: bool = False
    """Whether the effect of one handler of an atomic group can be rolled back without the others."""
    lends: bool = True
    """Whether a handler writes in the transaction by a session or connection that it takes; else it has it anyway."""
    no_async: str = (
        "has a synchronous engine: give it create_async_engine('postgresql+psycopg://...'), or write a plain "
        "`def`"
    )
    """Why it has no `async def` handlers, if it has none, and what to do."""

    @property
    def is_async(self) -> bool:
        """Whether its transactions are those of an AsyncEngine, for `async def` handlers."""
        return False

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
            TransactionEscapedError: before it raised, the handler has committed its transaction, or tried to.
        """

    def flush(self, claim: Claim) -> None:  # noqa: B027 - optional
        """Send what a handler of an atomic group has left pending, so that the next handler cannot discard it.

        The default does nothing, which suits a checker that sends all at once.
        """

    @abstractmethod
    def committed(self, completions: Sequence[Completion]) -> bool:
        """Whether these completions of one transaction were recorded when another exception than a StoreError came.

        Raises:
            StoreError: it is unknown.
        """

    @abstractmethod
    def forget(self, claim: Claim) -> None:
        """Remove the key of a failed handler from a group that continues without it."""

    def isolated(self, claim: Claim, session_type: type | None) -> AbstractContextManager[object]:
        """Roll back the effect of one handler of an atomic group if it raises. Only used with `isolates`.

        Args:
            claim: the handler's claim.
            session_type: the type of the handler's second parameter; None: it has no second parameter.
        """
        del claim, session_type
        return nullcontext()

    def interrupted(self, claim: Claim) -> None:  # noqa: B027 - optional
        """Expect no more of the claim's connection: its handler was interrupted, perhaps in a statement."""

    @abstractmethod
    def is_transient(self, claim: Claim, error: Exception) -> bool:
        """Whether the store caused the handler's exception, so that the message is worth another try."""

    @abstractmethod
    def has_lost_connection(self, error: Exception) -> bool:
        """Whether the transaction was undone because its connection was lost."""

    @abstractmethod
    def check_argument(self, kind: type) -> None:
        """Check that `handler_argument` provides a type, when a consumer is bound to the checker.

        Raises:
            ConfigurationError: it does not.
        """

    @abstractmethod
    def handler_argument(self, claim: Claim, kind: type) -> Any:
        """The session or connection for a handler's second parameter, of a type that `check_argument` has accepted."""


def transaction_of(claims: Sequence[Claim]) -> Any:
    """The transaction of these claims.

    Raises:
        ConfigurationError: they are of several.
    """
    transactions = {id(claim.transaction): claim.transaction for claim in claims}
    if len(transactions) != 1:
        raise ConfigurationError("claims of different transactions cannot complete together")
    return next(iter(transactions.values()))


def record_again(protocol: ClaimProtocol, request: ClaimRequest, claim: Claim) -> None:
    """Record the key of a transaction that was rolled back as done, in one of its own.

    Args:
        protocol: the checker's protocol.
        request: the request for the key.
        claim: the claim that was rolled back.

    Raises:
        StoreError: the key was not recorded: the store did not answer, or another delivery has it.
    """
    decision = protocol.claim(changed(request, owner=claim.owner, redelivered=False))
    if decision.claim:
        protocol.complete(decision.claim)
    elif decision.verdict is not Verdict.DUPLICATE:
        raise StoreBusyError(f"{claim.key} was not recorded: another delivery holds it. Try again.")


class NoTransactions(TransactionHooks):
    """The hooks of a checker without that capability: its claims are separate from the handlers' effects.

    Args:
        protocol: the checker's protocol.
    """

    def __init__(self, protocol: ClaimProtocol) -> None:
        self._protocol = protocol

    def claim_nothing(self) -> Claim:
        return Claim(NO_KEY)

    def ignore(self, request: ClaimRequest, claim: Claim) -> None:
        del request
        self._protocol.complete(claim)

    def committed(self, completions: Sequence[Completion]) -> bool:
        self._protocol.complete_many(
            completions
        )  # again: an exception interrupted it, and the effects have happened
        return True

    def forget(self, claim: Claim) -> None:
        del claim

    def is_transient(self, claim: Claim, error: Exception) -> bool:
        del claim, error
        return False

    def has_lost_connection(self, error: Exception) -> bool:
        del error
        return False

    def check_argument(self, kind: type) -> None:
        raise ConfigurationError(f"the checker has no {kind.__name__} to hand to a handler")

    def handler_argument(self, claim: Claim, kind: type) -> Any:
        del claim
        self.check_argument(kind)


def transactions_of(checker: AbstractIdempotentChecker) -> TransactionHooks:
    """The transaction hooks of a checker; `NoTransactions` if it has none."""
    return checker if isinstance(checker, TransactionHooks) else NoTransactions(checker.protocol)
