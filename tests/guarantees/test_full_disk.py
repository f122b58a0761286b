"""A database without room for a handler's rows: the store failed, so no attempt counts and no message is dead."""

import pytest
import sqlalchemy as sa

from idempotent.checkers import SqlChecker
from idempotent.claims import ClaimRequest
from idempotent.errors import StoreError
from idempotent.keys import KeySpace
from tests.checkers.sql.booking import MODES, consumer_of, messages, only, outcomes

# What the server itself says when its disk is full.
FILL = {
    "mysql": ["SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1114, MESSAGE_TEXT = 'The table is full'"],
    "postgres": ["DO $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$"],
    "sqlite": ["PRAGMA max_page_count = 1", "CREATE TABLE much AS SELECT zeroblob(1000000) AS content"],
}
_RAISES = """CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$"""


class Disk:
    """Fails a handler's transaction while it is full."""

    def __init__(self, store):
        self._store = store
        self.is_full = True
        self.runs = 0

    def __call__(self, message, session):
        self.runs += 1
        for statement in FILL[self._store.kind] if self.is_full else ():
            session.execute(sa.text(statement))


@pytest.fixture
def disk(sql_store):
    return Disk(sql_store)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_message_waits_for_room(sql_store, disk, mode):
    consumer = consumer_of(sql_store, sql_store.transactional(**mode), disk, max_attempts=1)
    (message,) = messages("1")
    assert outcomes(consumer.process(message) for _ in range(3)) == ["unavailable"] * 3
    disk.is_full = False
    assert outcomes(consumer.process(message) for _ in range(2)) == ["processed", "duplicate"]
    assert sql_store.booked() == {"1": 1}


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_group_waits_for_room(sql_store, disk, mode):
    consumer = consumer_of(sql_store, sql_store.transactional(**mode), disk, max_attempts=1)
    assert outcomes(consumer.process_many(messages("1", "2"))) == ["unavailable"] * 2
    disk.is_full = False
    assert outcomes(consumer.process_many(messages("1", "2"))) == ["processed"] * 2
    assert sql_store.booked() == {"1": 1, "2": 1}


@pytest.fixture
def full_for_updates(sql_store):
    """No row of the key table can be changed until the trigger is dropped."""
    only(sql_store, "mysql", "postgres")
    before = f"BEFORE UPDATE ON {sql_store.table} FOR EACH ROW"
    made = {
        "mysql": [f"CREATE TRIGGER full_disk {before} {FILL['mysql'][0]}"],
        "postgres": [
            _RAISES,
            f"CREATE TRIGGER full_disk {before} EXECUTE FUNCTION full_disk()",
        ],
    }
    dropped = {"mysql": "DROP TRIGGER full_disk", "postgres": "DROP FUNCTION IF EXISTS full_disk CASCADE"}
    run(sql_store, *made[sql_store.kind])
    end = [dropped[sql_store.kind]]
    yield lambda: run(sql_store, end.pop())
    for statement in end:
        run(sql_store, statement)


def run(store, *statements):
    with store.admin_engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_message_whose_completion_has_no_room_waits(sql_store, full_for_updates, mode):
    checker = sql_store.transactional(**mode)
    consumer = consumer_of(
        sql_store, checker, lambda message, session: "result", max_attempts=1, store_result=True
    )
    (message,) = messages("1")
    assert outcomes(consumer.process(message) for _ in range(3)) == ["unavailable"] * 3
    assert outcomes(consumer.process_many(messages("1", "2"))) == ["unavailable"] * 2
    full_for_updates()
    assert outcomes(consumer.process(message) for _ in range(2)) == ["processed", "duplicate"]


def test_a_file_without_room_for_the_key_says_so(sql_store):
    only(sql_store, "sqlite")
    engine = sql_store.engine()
    sa.event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA max_page_count = 1"))
    checker = SqlChecker(engine, table=sql_store.table)
    with pytest.raises(StoreError, match="is full"):
        claim_until_full(checker)
    checker.close()


def claim_until_full(checker):
    for number in range(10_000):
        checker.protocol.claim(ClaimRequest(KeySpace("orders", "billing").key(str(number))))
