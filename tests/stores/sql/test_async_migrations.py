"""The migrations take an AsyncEngine, or the URL of an asyncio driver, from a thread and from a greenlet."""

import asyncio

import pytest
from sqlalchemy.util import greenlet_spawn

from idempotent.migrations import check, current, downgrade, upgrade
from tests.support.stores import ASYNC
from tests.support.tables import new_name


@pytest.fixture(params=ASYNC)
def engine(request):
    from tests.support.stores import open_store

    for store in open_store(request.param, request, reuse=True):
        yield store.async_engine()


def in_a_loop(function, *arguments, **options):
    return asyncio.run(greenlet_spawn(function, *arguments, **options))


@pytest.mark.parametrize(
    "run", [lambda function, *a, **o: function(*a, **o), in_a_loop], ids=["thread", "greenlet"]
)
def test_tables_are_made_checked_and_dropped_through_an_asyncio_driver(engine, run):
    table = new_name()
    assert run(check, engine, table=table)
    run(upgrade, engine, table=table)
    assert run(check, engine, table=table) == []
    assert run(current, engine, table=table) is not None
    run(downgrade, engine.url.set(drivername=ASYNC_SCHEME[engine.dialect.name]), table=table)
    assert run(current, engine, table=table) is None


ASYNC_SCHEME = {"mysql": "mysql+asyncmy", "postgresql": "postgresql+psycopg_async"}
