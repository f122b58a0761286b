"""Brokers of dramatiq on Redis."""

from __future__ import annotations

import secrets

import pytest

from tests.adapters.dramatiq_plugin.shop import Settings
from tests.support.tables import new_name


@pytest.fixture
def settings(redis_url, tmp_path):
    """Everything on Redis."""
    queue = f"dramatiq-{secrets.token_hex(6)}"
    return Settings(redis_url, redis_url, queue, str(tmp_path / "ran"), redis_url, new_name())


@pytest.fixture
def order():
    return secrets.token_hex(6)
