"""One call under way is enough to make others wait for a round."""

import pytest

from idempotent.checkers.combining import line


@pytest.fixture(autouse=True)
def turns(monkeypatch):
    monkeypatch.setattr(line, "MOST_DIRECT", 1)
