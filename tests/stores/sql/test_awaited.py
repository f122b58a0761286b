"""What the face of an asyncio driver's connection says about it."""

import asyncio

from idempotent.stores.sql import awaited


def test_a_lock_that_was_released_is_wanted_until_its_next_owner_wakes_up():
    async def main():
        lock = asyncio.Lock()
        assert not awaited._is_wanted(lock)
        await lock.acquire()
        waiting = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0)
        lock.release()
        assert not lock.locked()
        assert awaited._is_wanted(lock)
        await waiting
        assert awaited._is_wanted(lock)
        lock.release()
        assert not awaited._is_wanted(lock)

    asyncio.run(main())
