"""The checker contract over one of the stores that tests run on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.testing import Capability, CheckerContract
from tests.support.stores import Store, open_store


class LeasedOver(CheckerContract):
    """The leased checker of a store."""

    kind: ClassVar[str]
    store: Store

    @pytest.fixture(autouse=True)
    def _store(self, request: pytest.FixtureRequest) -> Iterator[None]:
        with contextmanager(open_store)(self.kind, request, least=True, reuse=True) as self.store:
            yield

    def make_checker(self, *, lease_s: float | None, retention_s: float) -> AbstractIdempotentChecker:
        return self.store.leased(lease_s=lease_s, retention_s=retention_s)

    def age(self, checker: AbstractIdempotentChecker, seconds: float) -> None:
        self.store.age(seconds)


class TransactionalOver(LeasedOver):
    """The transactional checker of a store."""

    lacks = frozenset({Capability.RECORDED_CLAIMS, Capability.LEASES})

    def make_checker(self, *, lease_s: float | None, retention_s: float) -> AbstractIdempotentChecker:
        return self.store.transactional(retention_s=retention_s, lock_timeout_s=0.2)


class AsyncTransactionalOver(TransactionalOver):
    """The same checker with an AsyncEngine: its synchronous calls run on a private event loop."""

    def make_checker(self, *, lease_s: float | None, retention_s: float) -> AbstractIdempotentChecker:
        engine = self.store.async_engine()
        return self.store.transactional(engine, retention_s=retention_s, lock_timeout_s=0.2)
