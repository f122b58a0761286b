"""Brokers of taskiq on streams of Redis."""

from __future__ import annotations

import secrets

import pytest

from tests.adapters.taskiq_plugin.shop import Settings
from tests.support.tables import new_name


@pytest.fixture
def settings(redis_url, tmp_path):
    """Everything on Redis."""
    return Settings(redis_url, f"taskiq-{secrets.token_hex(6)}", str(tmp_path / "ran"), redis_url, new_name())


@pytest.fixture
def order():
    return secrets.token_hex(6)
