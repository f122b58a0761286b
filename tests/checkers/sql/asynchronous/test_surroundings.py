"""Character sets of the application's choice, and processes that fork."""

from __future__ import annotations

import asyncio
import os
import signal
import warnings

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from idempotent.claims import ClaimRequest, Failure, Verdict
from tests.checkers.sql.asynchronous.driving import SPACE, booking, key, process

FACE = "\N{GRINNING FACE}"


@pytest.mark.parametrize("charset", ["latin1", "ascii", "utf8"])
def test_no_character_set_makes_a_key_or_its_error_unstorable(store, charset):
    names = {"mysql": "charset", "postgres": "client_encoding"}
    if store.kind == "postgres" and charset == "ascii":
        pytest.skip("SQLAlchemy cannot read the version of a server in SQL_ASCII")
    url = store.async_engine().url.update_query_dict({names[store.kind]: charset})
    checker = store.transactional(create_async_engine(url))

    async def main():
        awaiting = checker.awaiting
        for text in ("caf\N{LATIN SMALL LETTER E WITH ACUTE}", FACE):
            request = ClaimRequest(SPACE.key(text))
            claim = (await awaiting.claim(request)).claim
            released = await awaiting.call(checker.desk.release, claim, Failure(f"no {text}", 1))
            assert released.dead
            dead = await awaiting.claim(request)
            assert dead.verdict is Verdict.DEAD
            assert dead.reason == f"no {text}"

    asyncio.run(main())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork()")
def test_a_forked_child_opens_connections_of_its_own(store):
    checker = store.transactional(store.async_engine())
    checker.ping()
    claim = checker.desk.claim(ClaimRequest(key("parent"))).claim
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads
        child = os.fork()
    if not child:
        signal.alarm(30)
        ended = 1
        try:
            checker.desk.complete(checker.desk.claim(ClaimRequest(key("by hand"))).claim)
            asyncio.run(process(checker, "in a loop", booking(store, "child")))
            ended = 0
        finally:
            os._exit(ended)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert checker.desk.complete(claim)
    assert store.booked() == {"child": 1}
    with store.admin_engine.connect() as connection:
        count = connection.execute(sa.text(f"SELECT COUNT(*) FROM {store.table}")).scalar_one()
    assert count == 3
