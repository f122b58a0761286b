"""No waiter loses its patience, which would hide that nothing wakes it; and one call is enough to make others wait."""

import pytest

from idempotent.checkers.batching import batcher, combiner


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(batcher, "_PATIENCE_S", 600.0)


@pytest.fixture(autouse=True)
def turns(monkeypatch):
    monkeypatch.setattr(combiner, "MOST_DIRECT", 1)
