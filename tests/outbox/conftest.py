"""An outbox over every SQL database."""

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Message
from idempotent.outbox import Outbox, outbox_tables


@pytest.fixture
def tables(sql_store):
    """The outbox's tables, empty."""
    metadata = sa.MetaData()
    made = outbox_tables(metadata, sql_store.table)
    metadata.create_all(sql_store.admin_engine)
    yield made
    sql_store.opened.close()
    metadata.drop_all(sql_store.admin_engine)


@pytest.fixture
def outbox(sql_store, tables):
    made = Outbox(sql_store.engine(), table=sql_store.table)
    sql_store.opened.callback(made.close)
    return made


@pytest.fixture
def waiting(sql_store, tables):
    """`waiting()`: the bodies of the messages in the outbox, in the order of their rows."""

    def read():
        with sql_store.admin_engine.connect() as connection:
            rows = connection.execute(sa.select(tables.waiting.c.body).order_by(tables.waiting.c.id))
            return [bytes(row[0] or b"").decode() for row in rows]

    return read


@pytest.fixture
def send(outbox, sql_store):
    """`send(*bodies, **options)`: in one transaction."""

    def send(*bodies, **options):
        with Session(sql_store.admin_engine) as session, session.begin():
            for body in bodies:
                outbox.send(session, Message("invoices", str(body).encode()), **options)

    return send
