"""A name for a queue, and adapters that consume it."""

import secrets

import pytest

from idempotent import Registry
from idempotent.adapters.activemq import StompAdapter
from idempotent.checkers import MemoryChecker
from tests.adapters.activemq.member import QUICK


@pytest.fixture
def name():
    return f"orders-{secrets.token_hex(6)}"


@pytest.fixture
def make(stomp_url, name):
    """`make(subject=..., **options)`: an open adapter, closed after the test."""
    opened = []

    def make_adapter(subject=None, **options):
        adapter = StompAdapter(stomp_url, backoff=QUICK, **options)
        opened.append(adapter)
        adapter.open([Registry().consumer(subject or name, checker=MemoryChecker())(lambda message: None)])
        return adapter

    yield make_adapter
    for adapter in opened:
        adapter.close()
