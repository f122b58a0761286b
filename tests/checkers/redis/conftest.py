"""A client that loses the answers of the server."""

import pytest

from tests.checkers.redis.stored import LosesAnswers


@pytest.fixture
def loses_answers(redis_url):
    with LosesAnswers.from_url(redis_url, retry=None) as client:
        yield client
