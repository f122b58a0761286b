"""EffectTransaction: claims, and what a handler writes in the ledger's database, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import sessionmaker

from idempotent.adapters.spark.ledger.handler_claims import HandlerClaims
from idempotent.checkers.sql.handler_transaction import HandlerTransaction, undone
from idempotent.checkers.sql.sessions import Sessions
from idempotent.errors import TransactionEscapedError
from idempotent.stores.sql.connections import Connections
from idempotent.stores.sql.cursor import DriverConnection
from idempotent.stores.sql.detached import DetachedConnections
from idempotent.stores.sql.faults import Fault, as_store_error, fault_of

T = TypeVar("T")
_TRIES_LEFT: Final = (2, 1, 0)
_SESSIONS: Final = Sessions(sessionmaker())


class EffectTransaction(HandlerTransaction):
    """A handler's transaction with claims of its keys. Its block commits by `commit`, or not at all."""

    @classmethod
    def begin(
        cls,
        connections: Connections,
        own: DetachedConnections,
        table: str,
        claim: Callable[[DriverConnection], T],
    ) -> tuple[T, Self]:
        """Begin a transaction and claim in it: again, at most twice, after a deadlock or on a dead connection.

        Raises as `Connections.run`.
        """
        engine = connections.engine
        for remaining in _TRIES_LEFT:
            transaction: Self | None = None
            try:
                transaction = cls(own, connections.dialect, _SESSIONS, strict=False)
                answer = claim(transaction.driver)
                # From an answer with rows, such as of RETURNING, PyMySQL does not learn that a transaction is open.
                transaction.guard(keyed=transaction.is_open)
                return answer, transaction
            except BaseException as error:
                if transaction is not None:
                    transaction.close(reuse=False)
                if not isinstance(error, (engine.dialect.loaded_dbapi.Error, SQLAlchemyError, OSError)):
                    raise
                fault = fault_of(error, engine)
                if fault is Fault.DISCONNECTED:
                    own.close()
                if not remaining or fault not in (Fault.ABORTED, Fault.DISCONNECTED):
                    raise as_store_error(error, engine, table) from error
        raise AssertionError("unreachable")

    def demand_claims(self, claims: HandlerClaims, hashes: Sequence[bytes]) -> None:
        """Check that these claims, which were made in this transaction, are still in it.

        Raises as `demand_open`: the database has undone the transaction, or the handler ended it.
        """
        self.flush()
        self.demand_open()
        # After an error that the handler has ignored, the database may have begun another transaction, without claims.
        as_done = [(each, None) for each in hashes]
        if self.doubt and claims.finish(as_done) != set(hashes):
            if self.undone_by is not None:
                raise undone(self.undone_by)
            raise TransactionEscapedError(
                "the handler ignored an error that ended its transaction: let it pass"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Roll back what is not committed. After an error the connection is not used again."""
        self.close(reuse=error is None)
