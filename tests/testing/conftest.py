"""A database whose effects a process books."""

import pytest

from idempotent.migrations import upgrade


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "keys.db"
    upgrade(f"sqlite:///{path}")
    return path
