"""Settings of a session of MariaDB or MySQL under which its answers, its quotes or a COMMIT mean something else."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from idempotent.admin import Level
from idempotent.checkers import SqlChecker
from idempotent.migrations import check, downgrade, upgrade

MODES = (
    "sql_mode='ANSI'",
    "sql_mode='ORACLE'",
    "sql_mode='EMPTY_STRING_IS_NULL'",
    "sql_quote_show_create=0",
    "sql_mode='ANSI', sql_quote_show_create=0",
    "completion_type='CHAIN'",
    "completion_type='RELEASE'",
)


@pytest.mark.sample(3)
@pytest.mark.parametrize("first", [True, False], ids=["known to SQLAlchemy", "unknown"])
@pytest.mark.parametrize("mode", MODES)
def test_tables_are_made_and_found_as_they_should_be(mysql_url, mode, first):
    if first and "RELEASE" in mode:
        pytest.skip("SQLAlchemy's own first ROLLBACK disconnects")
    statement = f"SET SESSION {mode}"
    engine = sa.create_engine(mysql_url, connect_args={"init_command": statement} if first else {})

    def set_mode(raw, _record):
        with raw.cursor() as cursor:
            cursor.execute(statement)

    if not first:
        sa.event.listen(engine, "connect", set_mode)
    try:
        upgrade(engine, table="order")
        upgrade(engine, table="order")
        assert check(engine, table="order") == []
        checker = SqlChecker(engine, table="order")
        assert not [finding for finding in checker.findings() if finding.level is Level.ERROR]
        checker.close()
        downgrade(engine, table="order")
    finally:
        engine.dispose()
        downgrade(mysql_url, table="order")
