"""Character sets of the application's choice, asyncio's debug mode, and processes that fork."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import warnings
from collections import Counter

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from idempotent import Message
from idempotent.claims import ClaimRequest, Failure, Verdict
from tests.checkers.sql.asynchronous.driving import SPACE, booking, consumer_of, key, message, process

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
            released = await awaiting.call(checker.protocol.release, claim, Failure(f"no {text}", 1))
            assert released.dead
            dead = await awaiting.claim(request)
            assert dead.verdict is Verdict.DEAD
            assert dead.reason == f"no {text}"

    asyncio.run(main())


@pytest.mark.parametrize("leased", [False, True])
def test_asyncio_s_debug_mode_finds_nothing(store, caplog, leased):
    """It refuses calls from other threads, and names what nothing awaits."""
    checker = store.leased() if leased else store.transactional(store.async_engine(pool_size=5))
    asleep = asyncio.Semaphore(0)

    async def handle(message: Message) -> None:
        if message.id == "odd":
            raise ValueError
        if message.id == "slow":
            asleep.release()
            await asyncio.sleep(60)

    consumer = consumer_of(checker, handle)

    async def main():
        results = await asyncio.gather(*(consumer.process(message(n)) for n in [*range(30), "odd"]))
        results += await consumer.process_many([message(n) for n in [*range(20, 40), "odd"]])
        task = asyncio.create_task(consumer.process(message("slow")))
        await asleep.acquire()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return Counter(result.outcome.value for result in results)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert asyncio.run(main(), debug=True) == {"processed": 40, "duplicate": 10, "failed": 2}
        checker.close()
        gc.collect()
    said = [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    # That a call took long is about the machine.
    assert not [line for line in said if not line.startswith("Executing")]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork()")
def test_a_forked_child_opens_connections_of_its_own(store):
    checker = store.transactional(store.async_engine())
    checker.ping()
    claim = checker.protocol.claim(ClaimRequest(key("parent"))).claim
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads
        child = os.fork()
    if not child:
        signal.alarm(30)
        ended = 1
        try:
            checker.protocol.complete(checker.protocol.claim(ClaimRequest(key("by hand"))).claim)
            asyncio.run(process(checker, "in a loop", booking(store, "child")))
            ended = 0
        finally:
            os._exit(ended)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert checker.protocol.complete(claim)
    assert store.booked() == {"child": 1}
    with store.admin_engine.connect() as connection:
        count = connection.execute(sa.text(f"SELECT COUNT(*) FROM {store.table}")).scalar_one()
    assert count == 3
