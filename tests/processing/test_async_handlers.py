"""The second parameter of an `async def` handler: an AsyncSession or an AsyncConnection."""

import pytest
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from idempotent.errors import ConfigurationError
from idempotent.processing.handler import handler_of


class Mine(AsyncSession):
    pass


async def plain(message, session): ...
async def of_session(message, session: AsyncSession): ...
async def of_text(message, session: "AsyncSession"): ...
async def of_mine(message, session: Mine): ...
async def of_connection(message, connection: AsyncConnection): ...


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (plain, AsyncSession),
        (of_session, AsyncSession),
        (of_text, AsyncSession),
        (of_mine, Mine),
        (of_connection, AsyncConnection),
    ],
)
def test_an_async_handler_takes_the_asynchronous_forms(function, kind):
    assert handler_of(function, batch=False).session_type is kind


async def of_sync(message, session: Session): ...
async def of_sync_connection(message, session: Connection): ...
def sync_of_async(message, session: AsyncSession): ...
async def of_number(message, session: int): ...


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (of_sync, "let it take AsyncSession or AsyncConnection, or write a plain `def`"),
        (of_sync_connection, "let it take AsyncSession or AsyncConnection, or write a plain `def`"),
        (sync_of_async, "let it take Session or Connection, or write an `async def`"),
        (of_number, "must be an SQLAlchemy AsyncSession or AsyncConnection"),
    ],
)
def test_another_form_is_refused(function, told):
    with pytest.raises(ConfigurationError, match=told):
        handler_of(function, batch=False)
