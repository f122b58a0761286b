"""A task that runs longer than Redis hides its message."""

from __future__ import annotations

import secrets
import time

import pytest

from idempotent.testing.adapter_contract import until
from tests.adapters.celery_plugin.shop import opened, replace, worker

pytestmark = pytest.mark.slow
VISIBILITY_S, TASK_S = 3.0, 10.0


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_task_of_10_s_runs_once_over_a_visibility_timeout_of_3_s(settings, pool):
    """The plain task beside it runs several times, so copies were delivered."""
    settings = replace(settings, visibility_s=VISIBILITY_S)
    order = secrets.token_hex(6)
    with opened(settings) as app, worker(settings, pool), worker(settings, pool):
        app.tasks["plain"].delay(order, TASK_S)
        result = app.tasks["charge"].delay(order, TASK_S)
        assert result.get(timeout=40) == [order, 0]
        until(lambda: settings.lines().count(f"plain {order}") > 1, "a copy of the plain task")
        time.sleep(2 * VISIBILITY_S)
    assert settings.lines().count(f"charge {order}") == 1
