"""A broker in this process and a registry for a test."""

import pytest

from idempotent import Registry
from idempotent.adapters import MemoryBroker


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def registry() -> Registry:
    return Registry()
