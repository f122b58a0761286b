"""A setting of a session, of a user or of a server may change what a statement means: every value of each is tried."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from idempotent import Message, Registry
from idempotent.checkers import SqlChecker, TransactionalSqlChecker
from idempotent.errors import ConfigurationError
from tests.support.awaited import Awaited, as_async
from tests.support.stores import ASYNC_URLS

ALL = {
    "postgres": "SELECT name, enumvals FROM pg_settings"
    " WHERE context IN ('user', 'superuser') AND vartype IN ('bool', 'enum')",
    "mysql": "SELECT variable_name, enum_value_list FROM information_schema.system_variables"
    " WHERE variable_scope = 'SESSION' AND read_only = 'NO'"
    " AND variable_type IN ('BOOLEAN', 'ENUM', 'SET', 'FLAGSET')",
}
FEW = {
    "postgres": [
        ("default_transaction_isolation", "serializable"),
        ("default_transaction_read_only", "on"),
        ("standard_conforming_strings", "off"),
    ],
    "mysql": [
        ("completion_type", "CHAIN"),
        ("completion_type", "RELEASE"),
        ("sql_mode", "ANSI"),
        ("sql_mode", "ORACLE"),
        ("tx_read_only", "ON"),
    ],
}


HAPPENS = [
    *["processed"] * 2,
    "failed",
    *["duplicate"] * 2,
    *["processed"] * 2,
    *["duplicate"] * 4,
    *["dead"] * 2,
]


def every_value(store):
    with store.admin_engine.connect() as connection:
        rows = connection.exec_driver_sql(ALL[store.kind]).all()
    for name, values in rows:
        each = values.split(",") if isinstance(values, str) else values
        yield from ((name.lower(), value) for value in each or ("on", "off"))


@contextmanager
def opened(store, kind, name="", value=""):
    """A consumer over connections with this setting, or without one."""
    leased, tasks = kind == "leased", kind == "tasks"
    url = sa.make_url(store.url)
    made = create_async_engine(ASYNC_URLS[store.kind](url)) if tasks else sa.create_engine(url)
    engine = made.sync_engine if tasks else made

    def set_it(raw, _record):
        cursor = raw.cursor()
        try:
            cursor.execute(f"SET {name} = '{value}'")
            if store.kind == "postgres":
                raw.commit()
        except engine.dialect.loaded_dbapi.Error:  # not every user may set it, or not to this
            raw.rollback()
        cursor.close()

    if name:
        sa.event.listen(engine, "connect", set_it)

    def handle(message):
        if message.id.startswith("bad"):
            raise ValueError("bad")

    def in_session(message, session: Session):
        session.execute(sa.text("SELECT 1"))
        handle(message)

    checker = (SqlChecker if leased else TransactionalSqlChecker)(made, table=store.table)
    handler = handle if leased else as_async(in_session) if tasks else in_session
    consumer = Registry().consumer("orders", group="g", checker=checker, max_attempts=2)(handler)
    yield Awaited(consumer) if tasks else consumer
    checker.close()
    engine.dispose()


def outcomes(odd, plain, tag):
    """Of messages that an odd consumer handles first, or why it was refused."""
    messages = [Message("orders", id=f"{tag} {number}") for number in range(4)]
    bad = Message("orders", id=f"bad {tag}")
    try:
        results = [odd.process(messages[0]), odd.process(messages[1]), odd.process(bad)]
    except ConfigurationError as error:
        return str(error).lower()
    if all(result.outcome.value == "unavailable" for result in results):
        return " ".join({str(result.error) for result in results})
    results += [*odd.process_many(messages), *plain.process_many(messages)]
    return [result.outcome.value for result in (*results, plain.process(bad), plain.process(bad))]


@pytest.mark.parametrize("sql_store", ["mysql", "postgres"], indirect=True)
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        *((kind, FEW) for kind in ("leased", "transactional", "tasks")),
        *(pytest.param(kind, None, marks=pytest.mark.slow) for kind in ("leased", "transactional")),
    ],
)
def test_what_was_done_is_done_for_all_or_the_setting_is_refused_by_name(sql_store, kind, settings):
    with opened(sql_store, kind) as plain:
        for name, value in settings[sql_store.kind] if settings else list(every_value(sql_store)):
            with opened(sql_store, kind, name, value) as odd:
                found = outcomes(odd, plain, f"{name} {value}")
            assert found == HAPPENS or (isinstance(found, str) and name in found), (
                f"{name} = {value}: {found}"
            )
