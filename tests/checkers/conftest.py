"""A client of the test Redis, and a prefix for each test."""

import secrets

import pytest
import redis

from idempotent.checkers import RedisChecker


@pytest.fixture
def client(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def prefix():
    return f"test-{secrets.token_hex(4)}:"


@pytest.fixture
def make(client, prefix):
    """`make(lease_s=...)`: a checker under this test's prefix; `make(other_client)`: through another client."""
    made = []

    def make(of=None, **options):
        made.append(RedisChecker(client if of is None else of, prefix=prefix, **options))
        return made[-1]

    yield make
    for checker in made:
        checker.close()
