"""The server of the open connections refuses all changes; new connections reach the primary.

A trigger answers with the server's own error on each connection that was open before.
"""

from __future__ import annotations

import threading
import time

import pytest
import sqlalchemy as sa

from idempotent import Message, Outcome, Registry
from idempotent.checkers import SqlChecker
from idempotent.claims import ClaimRequest
from idempotent.keys import KeySpace
from tests.checkers.sql.booking import consumer_of

# Not in this cluster, read-only, in a replica, killed, gone, too slow.
MYSQL = [1047, 1290, 1792, 1836, 1927, 2006, 2013, 3024]
# A replica, shut down, crashed, starting, dropped, idle for too long, too many, a plan of before a migration.
POSTGRES = ["25006", "57P01", "57P02", "57P03", "57P04", "57P05", "53300", "0A000"]


class Moved:
    """An engine whose connections of before `fail` answer each change of the keys with an error."""

    def __init__(self, store) -> None:
        self.store = store
        self.engine = store.engine(pool_size=8)
        self._are_old = True
        sa.event.listen(self.engine, "connect", self._mark)
        table, quoted = store.table, store.admin_engine.dialect.identifier_preparer.quote(store.table)
        with store.admin_engine.begin() as connection:
            connection.execute(sa.text(f"CREATE TABLE {table}_moved (code VARCHAR(5))"))
            for change in ("INSERT", "UPDATE"):
                if store.kind == "mysql":
                    connection.exec_driver_sql(
                        f"CREATE TRIGGER {table}_{change} BEFORE {change} ON {quoted} FOR EACH ROW BEGIN "
                        f"DECLARE moved INT DEFAULT (SELECT MAX(code) FROM {table}_moved); "
                        "IF @old = 1 AND moved IS NOT NULL THEN "
                        "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = moved, MESSAGE_TEXT = 'not here'; END IF; END"
                    )
                elif change == "INSERT":
                    connection.exec_driver_sql(
                        f"CREATE FUNCTION {table}_moves() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                        f"IF current_setting('test.old', true) = '1' AND EXISTS (SELECT 1 FROM {table}_moved) THEN "
                        f"RAISE EXCEPTION 'not here' USING ERRCODE = (SELECT code FROM {table}_moved); "
                        "END IF; RETURN NEW; END $$"
                    )
                    connection.exec_driver_sql(
                        f"CREATE TRIGGER moved BEFORE INSERT OR UPDATE ON {quoted} FOR EACH ROW "
                        f"EXECUTE FUNCTION {table}_moves()"
                    )

    def _mark(self, connection, _record) -> None:
        if self._are_old:
            with connection.cursor() as cursor:
                cursor.execute("SET @old = 1" if self.store.kind == "mysql" else "SET test.old = '1'")
            connection.commit()

    def fail(self, code) -> None:
        self._are_old = False
        with self.store.admin_engine.begin() as connection:
            connection.execute(
                sa.text(f"INSERT INTO {self.store.table}_moved VALUES (:code)"), {"code": str(code)}
            )


@pytest.fixture
def moved(altered_sql_store):
    if altered_sql_store.kind == "sqlite":
        pytest.skip("has no server")
    return Moved(altered_sql_store)


def held(consumer, checker, count=4):
    """Have several connections open: as many claims as that at once."""
    keys = KeySpace("warm", "up")
    claims = [checker.protocol.claim(ClaimRequest(keys.key(str(n)))).claim for n in range(count)]
    for claim in claims:
        checker.protocol.abandon(claim)


def codes_of(moved):
    return MYSQL if moved.store.kind == "mysql" else POSTGRES


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("kind", ["leased", "transactional"])
def test_the_second_message_is_processed(moved, kind, number):
    store = moved.store
    if kind == "leased":
        checker = SqlChecker(moved.engine, table=store.table)
        consumer = Registry().consumer("orders", checker=checker)(lambda _: None)
        started = threading.Barrier(4)

        def warm():
            checker.store.connections.run(lambda _: started.wait(20))

        threads = [threading.Thread(target=warm) for _ in range(3)]
        for thread in threads:
            thread.start()
        started.wait(20)
        for thread in threads:
            thread.join(20)
    else:
        checker = store.transactional(moved.engine)
        consumer = consumer_of(store, checker)
        held(consumer, checker)
    moved.fail(codes_of(moved)[number])
    outcomes = [consumer.process(Message("orders", id=str(n))).outcome for n in range(4)]
    assert outcomes[1:] == [Outcome.PROCESSED] * 3
    assert outcomes[0] in {Outcome.PROCESSED, Outcome.UNAVAILABLE}
    together = consumer.process_many([Message("orders", id=f"more {n}") for n in range(20)])
    assert {result.outcome for result in together} == {Outcome.PROCESSED}


@pytest.mark.slow
def test_leases_are_renewed(moved):
    checker = SqlChecker(moved.engine, table=moved.store.table, lease_s=2.0)
    running, gate = threading.Event(), threading.Event()

    def handle(_):
        running.set()
        gate.wait(60)

    results = []
    consumer = Registry().consumer("orders", checker=checker)(handle)
    message = Message("orders", id="1")
    thread = threading.Thread(target=lambda: results.append(consumer.process(message)))
    thread.start()
    assert running.wait(20)
    moved.fail(codes_of(moved)[0])
    time.sleep(4.0)  # two leases
    other = Registry().consumer("orders", checker=moved.store.leased(lease_s=2.0))(lambda _: None)
    assert other.process(message).outcome is Outcome.IN_PROGRESS
    gate.set()
    thread.join(20)
    assert [result.outcome for result in results] == [Outcome.PROCESSED]


@pytest.mark.parametrize("kind", ["claim", "renewal"])
def test_a_lease_does_not_wait_for_connections_that_handlers_hold(sql_store, kind):
    engine = sql_store.engine(pool_size=1, max_overflow=0, pool_timeout=0.5)
    checker = SqlChecker(engine, table=sql_store.table)
    claim = checker.protocol.claim(ClaimRequest(KeySpace("orders", "default").key("1"))).claim
    checker.store.connections.close()  # recycled, or killed
    with engine.connect():
        if kind == "renewal":
            assert checker._renew_many([claim]) == [True]
        else:
            assert checker.protocol.claim(ClaimRequest(KeySpace("orders", "default").key("2"))).claim
