"""The checker contract over DjangoChecker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest
import sqlalchemy as sa

from idempotent.adapters.django import DjangoChecker
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.schema import DEFAULT_TABLE
from idempotent.testing import Capability, CheckerContract
from tests.adapters.django_plugin.project import connections_closed, empty
from tests.support.ageing import age_tables


class OverDjango(CheckerContract):
    """In transactions of the checker's own."""

    # A thread of Django has one connection, so its second claim would join the first one.
    lacks = frozenset({Capability.RECORDED_CLAIMS, Capability.LEASES, Capability.PARALLEL_CLAIMS})
    kind: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _database(self, request) -> Iterator[None]:
        self.engine = sa.create_engine(request.getfixturevalue(f"{self.kind}_project"))
        with connections_closed():
            yield
        self.engine.dispose()
        empty(self.kind)

    def make_checker(self, *, lease_s: float | None, retention_s: float) -> AbstractIdempotentChecker:
        return DjangoChecker(self.kind, retention_s=retention_s, lock_timeout_s=0.2)

    def age(self, checker: AbstractIdempotentChecker, seconds: float) -> None:
        age_tables(self.engine, DEFAULT_TABLE, seconds)


class TestPostgres(OverDjango):
    kind = "postgres"


class TestMySql(OverDjango):
    kind = "mysql"


class TestSqlite(OverDjango):
    kind = "sqlite"


# That one process collects at a time needs a lease; several do no harm.
for each in (OverDjango, TestPostgres, TestMySql, TestSqlite):
    each.test_one_collects_at_a_time = None
