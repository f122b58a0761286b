"""What people get wrong in a program that sends."""

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Message
from idempotent.errors import ConfigurationError
from idempotent.outbox import Outbox
from tests.support.logs import events, logged

NOTE = Message("invoices", b"1")


def test_an_outbox_of_another_database_is_told_once(sql_store, outbox, tables, caplog, tmp_path):
    other = f"sqlite:///{tmp_path / 'other.db'}"
    if sql_store.kind != "sqlite":
        other = sa.make_url(sql_store.url).set(database="another", query={"password": "s3cret"})
    elsewhere = Outbox(other, table=sql_store.table)
    for one in (outbox, elsewhere):
        for _ in range(3):
            with Session(sql_store.admin_engine) as session, session.begin():
                one.send(session, NOTE)
    elsewhere.close()
    (told,) = logged(caplog, "outbox_elsewhere")
    assert sql_store.admin_engine.url.database in told.written_to
    assert "***" in told.written_to or sql_store.kind == "sqlite"
    assert "s3cret" not in repr(vars(told))


def test_a_host_of_another_name_is_not_told(sql_store, tables, caplog):
    here = sa.make_url(sql_store.url)
    url = here.set(drivername="mariadb+pymysql", host="proxy") if sql_store.kind == "mysql" else here
    there = Outbox(url, table=sql_store.table)
    with Session(sql_store.admin_engine) as session, session.begin():
        there.send(session, NOTE)
    there.close()
    assert "outbox_elsewhere" not in events(caplog)


def test_dedup_outside_of_a_handler_is_refused(outbox, sql_store):
    with Session(sql_store.admin_engine) as session:
        with pytest.raises(ConfigurationError, match=r"Message\(\.\.\., id="):
            outbox.send(session, NOTE, dedup="order-7")
        with pytest.raises(ConfigurationError, match="dedup must be a string"):
            outbox.send(session, NOTE, dedup=7)


def test_a_session_without_an_engine_is_refused(outbox):
    with Session() as session:
        outbox.send(session, NOTE)
        with pytest.raises(ConfigurationError, match=r"Session\(engine\)"):
            session.commit()
