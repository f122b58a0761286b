"""One call under way is enough to make others wait for a round."""

import pytest

from idempotent.checkers.batching import combiner


@pytest.fixture(autouse=True)
def turns(monkeypatch):
    monkeypatch.setattr(combiner, "MOST_DIRECT", 1)
