"""What drives the hooks of an async checker in these tests, as a consumer does it for its tasks."""

from __future__ import annotations

import asyncio

from sqlalchemy.ext.asyncio import AsyncSession

from idempotent.claims import ClaimRequest, Failure, Verdict
from idempotent.errors import DoomedTransactionError
from idempotent.keys import KeySpace

SPACE = KeySpace("orders", "billing")


def key(number):
    return SPACE.key(str(number))


async def process(checker, number, handle, takes=AsyncSession):
    """One message: its verdict, or the exception of the handler or of its completion."""
    awaiting = checker.awaiting
    decision = await awaiting.claim(ClaimRequest(key(number)))
    claim = decision.claim
    if claim is None:
        return decision.verdict
    try:
        await handle(await awaiting.call(checker.handler_argument, claim, takes))
    except Exception as error:
        if await shielded(awaiting.call(checker.is_transient, claim, error)):
            await shielded(awaiting.call(checker.desk.release, claim))
            raise DoomedTransactionError from error
        await shielded(awaiting.call(checker.desk.release, claim, Failure("it failed", 9)))
        raise
    except BaseException:
        claim.unit.interrupted = True
        await shielded(awaiting.call(checker.desk.release, claim))
        raise
    try:
        await shielded(awaiting.complete(claim))
    except Exception:
        await shielded(awaiting.call(checker.desk.release, claim))
        raise
    return Verdict.ACQUIRED


async def shielded(step):
    """Run a step to its end; a cancellation goes on afterwards."""
    task = asyncio.ensure_future(step)
    cancelled = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except Exception:
            break
    if cancelled is not None:
        task.exception()
        raise cancelled
    return task.result()


def booking(store, number):
    """A handler that books a message."""

    async def book(session):
        await session.execute(store.effects.insert().values(id=str(number)))

    return book


async def nothing(_session):
    """A handler without effects."""


def idle_of(checker):
    """How many connections of units are kept."""
    return len(checker._units._connections._idle)
