"""The kinds of checkers that an asynchronous application may have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.functions.kinds import Kind, kind_of
from tests.support.stores import open_store

KINDS = (
    "memory-async",
    "postgres-async",
    "redis-async",
    "mysql-transactional-async",
    "postgres-transactional-async",
)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    with contextmanager(open_store)(request.param.partition("-")[0], request, reuse=True) as store:
        yield kind_of(request.param, store)
