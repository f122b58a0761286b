"""A broker in this process and a registry for a test."""

from collections.abc import Iterator

import pytest

from idempotent import Registry
from idempotent.adapters import MemoryBroker
from tests.worker.running import Running


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture(autouse=True)
def _no_worker_stays() -> Iterator[None]:
    """A test that fails must not leave its worker to the next ones, which count threads and collections."""
    yield
    Running.stop_all()


@pytest.fixture
def registry() -> Registry:
    return Registry()
