"""Settings of an application of FastStream on RabbitMQ, and its queues."""

from __future__ import annotations

import secrets

import pytest

from tests.adapters.faststream_plugin.shop import Settings
from tests.adapters.rabbitmq.rabbit import Rabbit
from tests.support.tables import new_name


@pytest.fixture(scope="module")
def rabbit(rabbitmq_url):
    rabbit = Rabbit(rabbitmq_url)
    yield rabbit
    rabbit.clean_up()


def settings_of(rabbit, url, ran):
    """Settings with queues for outputs and dead letters, which the application does not declare."""
    name = f"faststream-{secrets.token_hex(6)}"
    made = Settings(rabbit.url, name, str(ran), url, new_name())
    for queue in ("out", "dead"):
        rabbit.declare(f"{name}.{queue}")
    return made


@pytest.fixture
def settings(rabbit, redis_url, tmp_path):
    return settings_of(rabbit, redis_url, tmp_path / "ran")
