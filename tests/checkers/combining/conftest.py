"""No waiter loses its patience, which would hide that nothing wakes it."""

import pytest

from idempotent.checkers.combining import line


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(line, "_PATIENCE_S", 600.0)
