"""Summer time begins or ends in the database's zone while statements wait for a lock: what they write stays right.

Each test makes a zone of its own, whose clock changes in a few seconds.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from idempotent import Message, Outcome, Registry
from idempotent.checkers import OffsetChecker, SqlChecker
from idempotent.claims import ClaimRequest
from idempotent.message import Position
from idempotent.outbox import Outbox, outbox_tables
from idempotent.schema import offsets_name
from idempotent.stores.sql.cursor import execute, query
from tests.guarantees.orders import ORDERS, wait
from tests.support.stores import open_store

HOUR_S = 3600
# How far the zone is ahead of UTC, before and after.
CHANGES = {"begins": (HOUR_S, 2 * HOUR_S), "ends": (2 * HOUR_S, HOUR_S)}
LEASE_S = 300.0
RETENTION_S = 86400.0
DELAY_S = 5000.0
# An hour is wrong by more, and a busy machine by less.
TOLERANCE_S = 1200
# How long everything may take to wait before the change, in seconds: a busy machine gets another try.
PATIENCE_S = (2, 10, 30)


@pytest.fixture
def store(request):
    yield from open_store("mysql", request)


@contextmanager
def zone(engine, offsets, change_at):
    """The name of a new zone with these offsets before and after a Unix time."""
    name = f"Test/{secrets.token_hex(6)}"
    with engine.begin() as connection:
        run = connection.exec_driver_sql
        number = run("INSERT INTO mysql.time_zone (use_leap_seconds) VALUES ('N')").lastrowid
        run("INSERT INTO mysql.time_zone_name VALUES (%s, %s)", (name, number))
        for kind, (since, offset) in enumerate(zip((0, change_at), offsets, strict=True)):
            run(
                "INSERT INTO mysql.time_zone_transition_type VALUES (%s, %s, %s, 0, %s)",
                (number, kind, offset, kind),
            )
            run("INSERT INTO mysql.time_zone_transition VALUES (%s, %s, %s)", (number, since, kind))
    try:
        yield name
    finally:
        with engine.begin() as connection:
            for table in ("time_zone", "time_zone_name", "time_zone_transition_type", "time_zone_transition"):
                connection.exec_driver_sql(f"DELETE FROM mysql.{table} WHERE time_zone_id = %s", (number,))


def in_zone(name):
    """Options of an engine: the application's own settings of its sessions."""
    return {"connect_args": {"init_command": f"SET time_zone = '{name}', innodb_lock_wait_timeout = 50"}}


class Waiting:
    """One statement of each kind that writes times, and what holds the rows or tables for which they wait."""

    def __init__(self, store, name):
        self.store = store
        self.leased = SqlChecker(
            store.engine(**in_zone(name)), table=store.table, lease_s=LEASE_S, retention_s=RETENTION_S
        )
        store.opened.callback(self.leased.close)
        keys = [ORDERS.key(each) for each in ("renewed", "claimed", "transactional", "async")]
        claims = [self.leased.protocol.claim(ClaimRequest(key)).claim for key in keys]
        # Its one idle connection would wait for a second.
        self.leased.store.connections.run(execute, "SET SESSION innodb_lock_wait_timeout = 50")
        self.renewed = claims[0]

        engine, options = store.engine(**in_zone(name)), {"retention_s": RETENTION_S, "lock_timeout_s": 50}
        self.offsets = OffsetChecker(engine, table=store.table, lock_timeout_s=50)
        store.opened.callback(self.offsets.close)
        self.outbox = Outbox(engine, table=store.table)
        store.opened.callback(self.outbox.close)
        self.engine = engine
        self.consumer = Registry().consumer("orders", checker=store.transactional(engine, **options))(
            self.plain
        )
        self.by_offset = Registry().consumer("orders", checker=self.offsets)(self.plain)
        asynchronous = store.transactional(store.async_engine(**in_zone(name)), **options)
        self.awaited = Registry().consumer("orders", checker=asynchronous)(self.asynchronous)
        self.partition = self.by_offset.binding.requests.partition("topic", 0)
        self.offsets.begin({self.partition: 0})
        self.zones = set()

    def plain(self, message: Message, session: Session) -> None:
        self.zones.add(session.scalar(sa.text("SELECT @@time_zone")))

    async def asynchronous(self, message: Message, session: AsyncSession) -> None:
        self.zones.add(await session.scalar(sa.text("SELECT @@time_zone")))

    def send(self, **options):
        with Session(self.engine) as session, session.begin():
            self.outbox.send(session, Message("invoices", b"1"), **options)

    def statements(self):
        protocol, by_offset = self.leased.protocol, Message("orders", position=Position("topic", 0, 0, 0))
        return [
            lambda: self.leased._renew_many([self.renewed]) == [True],
            lambda: protocol.claim(ClaimRequest(ORDERS.key("claimed"))).claim is not None,
            lambda: self.consumer.process(Message("orders", id="transactional")).outcome is Outcome.PROCESSED,
            lambda: asyncio.run(self.process_async()).outcome is Outcome.PROCESSED,
            lambda: self.by_offset.process(by_offset).outcome is Outcome.PROCESSED,
            lambda: self.send() is None,
            lambda: self.send(delay_s=DELAY_S) is None,
        ]

    async def process_async(self):
        return await self.awaited.process(Message("orders", id="async"))

    def hold(self, connection, what):
        """Hold what the statements wait for. An INSERT reads the clock before it waits for a row, not for a table."""
        name, run = self.store.table, connection.exec_driver_sql
        outbox = outbox_tables(sa.MetaData(), name)
        tables = [name, offsets_name(name), outbox.waiting.name, outbox.delayed.name]
        free = f"DELETE FROM `{name}` WHERE key_hash <> %s"
        if what == "tables":
            run(free, (self.renewed.key.hash,))
            connection.commit()
            run(f"LOCK TABLES {', '.join(f'`{table}` WRITE' for table in tables)}")
        else:
            for table in tables:
                run(f"SELECT * FROM `{table}` FOR UPDATE").all()
            run(free, (self.renewed.key.hash,))

    @staticmethod
    def let_go(connection):
        connection.commit()
        connection.exec_driver_sql("UNLOCK TABLES")

    def count(self):
        """How many statements wait."""
        with self.store.admin_engine.connect() as connection:
            # MySQL cannot show the statements' bytes in information_schema.
            own = connection.scalar(sa.text("SELECT CONNECTION_ID()"))
            database = self.store.admin_engine.url.database
            sessions = connection.execute(sa.text("SHOW PROCESSLIST")).all()
            return sum(
                each.Id != own and each.db == database and each.Command == "Query" for each in sessions
            )

    def times(self):
        """Each written time, by what it is, less what was added to it, in seconds."""
        name = self.store.table
        outbox = outbox_tables(sa.MetaData(), name)
        questions = {
            "lease": f"SELECT lease_until / 1e6 - {LEASE_S} FROM `{name}` WHERE lease_until IS NOT NULL",
            "fence": f"SELECT fence / 1e6 FROM `{name}`",
            "update": f"SELECT update_at / 1e6 FROM `{name}`",
            "expiry": f"SELECT expires_at / 1e6 - {RETENTION_S} FROM `{name}`",
            "offset": f"SELECT update_at / 1e6 FROM `{offsets_name(name)}`",
            "sent": f"SELECT created_at / 1e6 FROM `{outbox.waiting.name}`",
            "delayed": f"SELECT created_at / 1e6 FROM `{outbox.delayed.name}`",
            "due": f"SELECT due_at / 1e6 - {DELAY_S} FROM `{outbox.delayed.name}`",
        }
        with self.store.admin_engine.connect() as connection:
            return {
                what: [float(row[0]) for row in connection.exec_driver_sql(sql)]
                for what, sql in questions.items()
            }


def across(store, offsets, held, patience_s):
    """What waited across a change, and the answers; None: the change came first."""
    change_at = math.ceil(time.time()) + patience_s
    with zone(store.admin_engine, offsets, change_at) as name, store.admin_engine.connect() as holder:
        waiting = Waiting(store, name)
        statements = waiting.statements()
        waiting.hold(holder, held)
        with ThreadPoolExecutor(len(statements)) as pool:
            answers = [pool.submit(each) for each in statements]
            try:
                wait(lambda: waiting.count() == len(statements), "the statements wait")
                if time.time() >= change_at:
                    return None
                time.sleep(change_at - time.time() + 0.1)
            finally:
                waiting.let_go(holder)
            assert [answer.result(30) for answer in answers] == [True] * len(statements)
        assert waiting.zones == {name}, "the application's sessions keep their zone"
        return waiting


@pytest.mark.parametrize("held", ["rows", "tables"])
@pytest.mark.parametrize("change", ["ends", pytest.param("begins", marks=pytest.mark.slow)])
def test_times_are_right_although_the_zone_changed_while_a_statement_waited(store, change, held):
    outbox = sa.MetaData()
    outbox_tables(outbox, store.table)
    outbox.create_all(store.admin_engine)
    try:
        tries = (across(store, CHANGES[change], held, patience_s) for patience_s in PATIENCE_S)
        waiting = next(filter(None, tries))
        now = time.time()
        wrong = {
            what: [at - now for at in times if abs(at - now) > TOLERANCE_S]
            for what, times in waiting.times().items()
        }
        assert not any(wrong.values()), wrong
    finally:
        store.opened.close()
        outbox.drop_all(store.admin_engine)


def test_the_zone_of_the_library_s_own_sessions_is_utc(store):
    with zone(store.admin_engine, CHANGES["ends"], 2_000_000_000) as name:
        checkers = [
            SqlChecker(store.engine(**in_zone(name)), table=store.table),
            store.transactional(store.engine(**in_zone(name))),
            store.transactional(store.async_engine(**in_zone(name))),
        ]
        for checker in checkers:
            ((found,),) = checker.store.connections.run(query, "SELECT @@time_zone")
            checker.close()
            assert found == "+00:00"
