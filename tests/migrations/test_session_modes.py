"""Settings of a session, or of a server, under which answers, quotes, names or a COMMIT mean something else.

Each runs what a service runs: the migrations, twice; `check`, `doctor`; consumers; and the relay of an outbox.
"""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from idempotent import Message, Outcome, Registry
from idempotent.admin import Level
from idempotent.checkers import SqlChecker, TransactionalSqlChecker
from idempotent.errors import ConfigurationError
from idempotent.migrations import check, downgrade, upgrade
from idempotent.outbox import Outbox
from tests.cli.support import Cli
from tests.outbox.picky import Picky, relay, until

MODES = {
    "mysql": [
        "sql_mode='ANSI'",
        "sql_mode='ORACLE'",
        "sql_mode='EMPTY_STRING_IS_NULL'",
        "sql_mode='NO_BACKSLASH_ESCAPES'",
        "sql_mode=''",
        "sql_quote_show_create=0",
        "sql_mode='ANSI', sql_quote_show_create=0",
        "completion_type='CHAIN'",
        "completion_type='RELEASE'",
        "transaction_isolation='SERIALIZABLE'",
        "time_zone='-11:00'",
    ],
    "postgres": [
        "quote_all_identifiers = on",
        "standard_conforming_strings = off",
        "bytea_output = escape",
        "client_encoding = LATIN1",
        "default_transaction_isolation = serializable",
        "default_transaction_deferrable = on",
        "session_replication_role = replica",
        "search_path = public, pg_catalog",
        "time zone 'Asia/Kathmandu'",
    ],
}


def demand_all(engine, table):
    """Migrate, look, consume, send and publish on the connections of this engine."""
    for _ in range(2):
        upgrade(engine, table=table)
    assert check(engine, table=table) == []
    outbox, broker = Outbox(engine, table=table), Picky()

    def work(message, session):
        outbox.send(session, Message("invoices", b"", id=message.subject))
        if message.id == "bad":
            raise ValueError

    def leased(message):
        with Session(engine) as session, session.begin():
            work(message, session)

    def transactional(message, session: Session):
        work(message, session)

    for kind, handler in ((SqlChecker, leased), (TransactionalSqlChecker, transactional)):
        checker, name = kind(engine, table=table), handler.__name__
        consumer = Registry().consumer(name, group="g", checker=checker, max_attempts=2)(handler)
        outcomes = [consumer.process(Message(name, id=each)).outcome for each in ("1", "1", "bad", "bad")]
        assert outcomes == [Outcome.PROCESSED, Outcome.DUPLICATE, Outcome.FAILED, Outcome.DEAD]
        many = consumer.process_many([Message(name, id=each) for each in ("1", "2", "2", "bad")])
        assert [each.outcome for each in many] == [
            Outcome.DUPLICATE,
            Outcome.PROCESSED,
            Outcome.DUPLICATE,
            Outcome.DEAD,
        ]
        assert not [finding for finding in checker.findings() if finding.level is Level.ERROR]
        checker.garbage_collect_alone()
        checker.close()
    with relay(outbox, broker):
        until(lambda: len(broker.published) >= 4)
    assert sorted(broker.published) == [("leased", "")] * 2 + [("transactional", "")] * 2
    outbox.close()


@pytest.mark.sample(4)
@pytest.mark.parametrize("first", [True, False], ids=["known to SQLAlchemy", "unknown"])
@pytest.mark.parametrize(
    ("server", "mode"), [(server, mode) for server, modes in MODES.items() for mode in modes]
)
def test_all_works_in_a_session_of_any_mode(server, mode, first, request):
    if first and "RELEASE" in mode:
        pytest.skip("SQLAlchemy's own first ROLLBACK disconnects")
    url = sa.make_url(request.getfixturevalue(f"{server}_url"))
    engine = sa.create_engine(url)

    @sa.event.listens_for(engine, "connect", insert=first)
    def set_mode(raw, _record):
        with raw.cursor() as cursor:
            try:
                cursor.execute(f"SET SESSION {mode}")
            except engine.dialect.loaded_dbapi.Error:
                pytest.skip("this server has no such mode")
        if server == "postgres":
            raw.commit()

    try:
        demand_all(engine, "order")
        downgrade(engine, table="order")
    finally:
        engine.dispose()
        downgrade(url, table="order")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["--lower-case-table-names=1"],
        ["--log-bin", "--binlog-format=STATEMENT"],
        ["--sql-mode=ANSI,EMPTY_STRING_IS_NULL", "--completion-type=CHAIN"],
    ],
    ids=lambda options: options[-1].lstrip("-"),
)
def test_all_works_on_a_server_with_odd_settings(private_mariadb, options):
    engine = sa.create_engine(private_mariadb(*options).url)
    demand_all(engine, "Order_Keys")
    demand_all(engine, "group")
    downgrade(engine, table="Order_Keys")
    assert not [name for name in sa.inspect(engine).get_table_names() if name.lower().startswith("order")]
    engine.dispose()


@pytest.mark.slow
def test_a_server_that_makes_tables_and_takes_no_rows_is_refused_before(private_mariadb, monkeypatch):
    server = private_mariadb("--log-bin", "--binlog-format=STATEMENT")
    fine = sa.create_engine(server.url)
    for level in ("READ COMMITTED", "READ UNCOMMITTED"):
        engine = sa.create_engine(server.url, isolation_level=level)
        with pytest.raises(
            ConfigurationError, match=f"binlog_format is STATEMENT.*{level}.*Nothing was changed"
        ):
            upgrade(engine)
        assert sa.inspect(fine).get_table_names() == []
        engine.dispose()
    # The tables may be there already: who consumes reads the same.
    upgrade(fine)
    with fine.connect() as connection:
        connection.exec_driver_sql("SET GLOBAL tx_isolation='READ-COMMITTED'")
    fine.dispose()
    checker = SqlChecker(server.url)
    consumer = Registry().consumer("orders", checker=checker)(lambda message: None)
    result = consumer.process(Message("orders", id="1"))
    assert result.outcome is Outcome.UNAVAILABLE
    assert "set binlog_format to ROW or MIXED, or the isolation level" in str(result.error)
    checker.close()
    monkeypatch.setenv("COLUMNS", "250")
    (found,) = [
        each
        for each in Cli(CliRunner())("doctor", "--url", server.url, "--json").lines
        if each["level"] == "error"
    ]
    assert "set binlog_format to ROW or MIXED, or the isolation level" in found["what"]
