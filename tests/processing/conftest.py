"""A shop over every store, in every mode."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.processing.shop import LEASED, TRANSACTIONAL, Shop, open_shop


@pytest.fixture(params=[*LEASED, *TRANSACTIONAL])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    yield from open_shop(request.param[0], request)


@pytest.fixture(params=LEASED)
def leased_shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    yield from open_shop(request.param[0], request)


@pytest.fixture(params=TRANSACTIONAL)
def transactional_shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    yield from open_shop(request.param[0], request)
