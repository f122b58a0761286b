"""The databases with an asyncio driver, each in turn."""

import pytest

from tests.support.stores import ASYNC, open_store


@pytest.fixture(params=ASYNC)
def store(request):
    yield from open_store(request.param, request, reuse=True)
