"""Messages for an async checker."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from idempotent import Message, Registry
from idempotent.keys import KeySpace

SPACE = KeySpace("orders", "billing")


def key(number):
    return SPACE.key(str(number))


def message(number):
    return Message("orders", id=str(number))


def consumer_of(checker, handler, **options):
    return Registry().consumer("orders", group="billing", checker=checker, **options)(handler)


async def process(checker, number, handle, takes=AsyncSession):
    """One message through an async consumer: its outcome, or the exception in its result."""

    async def handler(_message, given):
        await handle(given)

    handler.__annotations__["given"] = takes
    result = await consumer_of(checker, handler).process(message(number))
    if result.error is not None:
        raise result.error
    return result.outcome


def booking(store, number):
    """A handler that books a message."""

    async def book(session):
        await session.execute(store.effects.insert().values(id=str(number)))

    return book


async def nothing(_session):
    """A handler without effects."""


def idle_of(checker):
    """How many connections of units are kept."""
    return len(checker._transactions._connections._idle)
