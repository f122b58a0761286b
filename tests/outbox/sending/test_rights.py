"""What the user of a service that only sends may do: docs/reference/privileges.md."""

import secrets

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Message
from tests.support.privileges import PASSWORD


@pytest.fixture
def sender(sql_store, tables):
    """URL of a user who may insert rows, and nothing else."""
    name = f"u{secrets.token_hex(6)}"
    is_mysql = sql_store.kind == "mysql"
    user = f"'{name}'@'%'" if is_mysql else name
    both = (tables.waiting.name, tables.delayed.name)
    granted = [f"INSERT ON {each}" for each in both]
    if is_mysql:
        made, ends = f"CREATE USER {user} IDENTIFIED BY '{PASSWORD}'", []
    else:
        made, ends = f"CREATE ROLE {user} LOGIN PASSWORD '{PASSWORD}'", [f"DROP OWNED BY {user}"]
        granted += [f"USAGE ON SEQUENCE {each}_id_seq" for each in both]
    with sql_store.admin_engine.begin() as connection:
        for statement in (made, *(f"GRANT {each} TO {user}" for each in granted)):
            connection.execute(sa.text(statement))
    yield sa.make_url(sql_store.url).set(username=name, password=PASSWORD)
    with sql_store.admin_engine.begin() as connection:
        for statement in (*ends, f"DROP USER {user}"):
            connection.execute(sa.text(statement))


@pytest.mark.parametrize("sql_store", ["postgres", "mysql"], indirect=True)
def test_a_service_that_only_sends_needs_no_more_than_inserts(outbox, sender, waiting, sql_store):
    engine = sa.create_engine(sender)
    with Session(engine) as session, session.begin():
        outbox.send(session, Message("invoices", b"1"))
        outbox.send(session, Message("invoices", b"2"), delay_s=600)
    engine.dispose()
    assert waiting() == ["1"]
    assert outbox.store.stats().delayed == 1
