"""What a handler changes in its session, as services with several tenants do, leads no statement of the library astray.

Each change is made at each place of a handler, one after another on the same connections, and each handler also sends
through an outbox. The other schema has tables of the same names.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import contextmanager, suppress
from itertools import product

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from idempotent import Message, Outcome, Registry
from idempotent.admin import KeyFilter, Level
from idempotent.checkers import OffsetChecker, SqlChecker, TransactionalSqlChecker
from idempotent.errors import ConfigurationError, SchemaError
from idempotent.message import Position
from idempotent.migrations import upgrade
from idempotent.outbox import Outbox
from idempotent.policy import Backoff
from tests.migrations.support import expected
from tests.outbox.picky import Picky, relay, until
from tests.support.awaited import as_async
from tests.support.privileges import user_of_tables
from tests.support.stores import open_store

CHANGES = {
    "postgres": [
        "SET search_path TO {other}",
        "SET LOCAL search_path TO {other}",
        "SELECT set_config('search_path', '{other}, public', false)",
        "SET search_path TO pg_catalog",
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SET TIME ZONE 'America/New_York'",
        "SET standard_conforming_strings TO off",
        "SET bytea_output TO escape",
        "SET client_encoding TO LATIN1",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    ],
    "mysql": [
        "USE {other}",
        "USE information_schema",
        "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SET time_zone = '-11:00'",
        "SET sql_mode = 'ANSI'",
        "SET sql_mode = 'NO_BACKSLASH_ESCAPES'",
        "SET sql_mode = ''",
        "SET /*M! sql_mode = 'EMPTY_STRING_IS_NULL', */ time_zone = '+05:00'",  # MariaDB's alone
        "SET NAMES latin1",
        "SET completion_type = CHAIN",
        "SET SESSION TRANSACTION READ ONLY",
        "SET ROLE NONE",
    ],
}
# `sent`: the change comes after the message for the outbox. `undone`: the savepoint in which it is made is rolled back.
PLACES = ["first", "sent", "last", "savepoint", "undone", "failing"]
CHECKERS = {
    "leased": (SqlChecker, {}),
    "transactional": (TransactionalSqlChecker, {}),
    "strict": (TransactionalSqlChecker, {"strict": True}),
    "savepoints": (TransactionalSqlChecker, {"savepoints": True}),
    "offsets": (OffsetChecker, {}),
}
TOPIC = "0d1fdd1e-topic"
# With a quote, a backslash and a zero byte, which escapes of text must not change.
BODY = b"it's \\' \0 \xf0\x9f\x98\x80"


@pytest.fixture(params=["postgres", "mysql"])
def store(request):
    yield from open_store(request.param, request, reuse=True)


@pytest.fixture
def other(store):
    """A schema with tables of the same names, and the outbox's tables in the right one."""
    name = f"{store.table}_other"
    metadata = expected(store.table)
    outboxes = [table for each, table in metadata.tables.items() if "_outbox" in each]
    kind = "DATABASE" if store.kind == "mysql" else "SCHEMA"
    elsewhere = store.admin_engine.execution_options(schema_translate_map={None: name})
    with store.admin_engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE {kind} {name}")
    metadata.create_all(elsewhere)
    metadata.create_all(store.admin_engine, tables=outboxes)
    yield name
    store.opened.close()
    metadata.drop_all(store.admin_engine, tables=outboxes)
    with store.admin_engine.begin() as connection:
        connection.exec_driver_sql(f"DROP {kind} {name}{'' if store.kind == 'mysql' else ' CASCADE'}")


def filled(store, schema):
    """Those tables of the schema that have rows, without the store's name."""
    there = store.admin_engine.execution_options(schema_translate_map={None: schema})
    with there.connect() as connection:
        return {
            table.name.removeprefix(store.table)
            for table in expected(store.table).sorted_tables
            if connection.execute(sa.select(table).limit(1)).all()
        }


class Tenants:
    """A consumer whose handler makes one change for each message, and what became of the messages."""

    def __init__(self, store, other, checker, *, tasks):
        kind, options = CHECKERS[checker]
        self.store, self.other, self.tasks = store, other, tasks
        self.failed = set()
        home = store.admin_engine.url.database if store.kind == "mysql" else "public"
        self.effects = sa.Table(f"{store.table}_effects", sa.MetaData(), sa.Column("id"), schema=home)
        # One connection, which all messages share.
        engine = store.async_engine(pool_size=1) if tasks else store.engine(pool_size=1)
        self.leased = leased = kind is SqlChecker
        self.engine = engine
        self.checker = kind(store.engine() if leased else engine, table=store.table, **options)
        self.outbox = Outbox(engine, table=store.table)
        store.opened.callback(self.outbox.close)
        store.opened.callback(self.checker.close)

        def in_session(message, session: Session):
            self.work(message, session)

        def plain(message):
            with Session(engine) as session, session.begin():
                self.work(message, session)

        async def in_task(message):
            async with AsyncSession(engine) as session, session.begin():
                await session.run_sync(lambda inner: self.work(message, inner))

        handler = (in_task if tasks else plain) if leased else as_async(in_session) if tasks else in_session
        decorate = Registry().consumer(
            "orders",
            group="g",
            checker=self.checker,
            backoff=Backoff(0.0, 0.0),
            store_result=checker != "offsets",
        )
        self.consumer = decorate(handler)
        self.messages = self.made(checker == "offsets")
        if checker == "offsets":
            self.checker.begin({self.consumer.binding.requests.partition(TOPIC, 0): 0})

    def made(self, by_offset):
        """A message for each change at each place, in a random order that is the same in each run."""
        changes = CHANGES[self.store.kind]
        if self.leased:  # the Session is the application's own, and so is what it leaves on the connection
            changes = [change for change in changes if not change.endswith(("READ ONLY", "ESCAPES'"))]
        chosen = [*product(changes, PLACES)]
        random.Random(7).shuffle(chosen)
        return [
            Message(
                "orders",
                id=f"{number}",
                headers={"change": change.format(other=self.other), "place": place},
                position=Position(TOPIC, 0, number, number) if by_offset else None,
            )
            for number, (change, place) in enumerate(chosen)
        ]

    def work(self, message, session):
        place = message.headers["place"]

        def change():
            session.execute(sa.text(message.headers["change"]))

        if place == "first":
            change()
        if place == "savepoint":
            with session.begin_nested():
                change()
        if place == "undone":
            with suppress(KeyError), session.begin_nested():
                change()
                raise KeyError
        session.execute(self.effects.insert().values(id=self.name(message)))
        self.outbox.send(session, Message("invoices", BODY, id=self.name(message)))
        if place == "sent":
            self.outbox.flush(session)
            change()
        if place == "last":
            session.flush()
            change()
        if place == "failing" and message not in self.failed:
            self.failed.add(message)
            change()
            raise RuntimeError(message.headers["change"])

    @staticmethod
    def name(message):
        return message.id or str(message.position.offset)

    @contextmanager
    def running(self):
        """`process(messages)`, on one event loop if the handler is async."""
        if not self.tasks:
            yield self.consumer.process_many
            return
        with asyncio.Runner() as runner:
            yield lambda messages: runner.run(self.consumer.process_many(messages))
            runner.run(self.engine.dispose())


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize("tasks", [False, True], ids=["threads", "tasks"])
@pytest.mark.sample(3)
@pytest.mark.parametrize("together", [1, 5])
def test_each_effect_and_each_message_for_the_outbox_happens_once(store, other, checker, tasks, together):
    tenants = Tenants(store, other, checker, tasks=tasks)
    with tenants.running() as process:
        for first in range(0, len(tenants.messages), together):
            left = tenants.messages[first : first + together]
            for _ in range(4):
                results = process(left)
                for message, result in zip(left, results, strict=True):
                    if result.outcome is Outcome.FAILED:
                        assert isinstance(result.error, RuntimeError), (message, result)
                done = {Outcome.PROCESSED, Outcome.DUPLICATE}
                left = [m for m, result in zip(left, results, strict=True) if result.outcome not in done]
                if not left:
                    break
            assert not left, (left, results)
        again = process(tenants.messages)
        assert {result.outcome for result in again} == {Outcome.DUPLICATE}, again
    names = [tenants.name(message) for message in tenants.messages]
    assert store.booked() == dict.fromkeys(names, 1)
    broker = Picky()
    outbox = Outbox(store.engine(), table=store.table)
    store.opened.callback(outbox.close)
    with relay(outbox, broker):
        until(lambda: len(broker.published) >= len(names))
    assert sorted(broker.published) == sorted((name, BODY.decode()) for name in names)
    assert filled(store, other) == set()


@pytest.mark.parametrize("checker", CHECKERS)
def test_tables_may_be_in_a_schema_to_which_no_session_leads(store, other, checker):
    kind, options = CHECKERS[checker]
    engine = store.engine()
    outbox = Outbox(engine, table=store.table, schema=other)
    made = kind(engine, table=store.table, schema=other, **options)
    for each in (outbox, made):
        store.opened.callback(each.close)

    def handle(message, session: Session):
        outbox.send(session, Message("invoices", BODY, id="1"))
        if message.id == "bad":
            raise RuntimeError

    def leased(message):
        with Session(engine) as session, session.begin():
            handle(message, session)

    decorate = Registry().consumer("orders", group="g", checker=made, max_attempts=1)
    consumer = decorate(leased if kind is SqlChecker else handle)
    if kind is OffsetChecker:
        made.begin({consumer.binding.requests.partition(TOPIC, 0): 0})
    done = Message("orders", id="1", position=Position(TOPIC, 0, 0, 0))
    for expect in (Outcome.PROCESSED, Outcome.DUPLICATE):
        assert consumer.process(done).outcome is expect
    if kind is not OffsetChecker:
        assert consumer.process(Message("orders", id="bad")).outcome is Outcome.DEAD
        assert len(list(made.admin().list(KeyFilter()))) > 1
    made.ping()
    assert not [finding for finding in made.findings() if finding.level is Level.ERROR]
    made.garbage_collect_alone()
    assert {"_outbox", "_offsets" if kind is OffsetChecker else ""} <= filled(store, other)
    broker = Picky()
    with relay(outbox, broker):
        until(lambda: broker.published == [("1", BODY.decode())])
    with store.admin_engine.connect() as connection:
        here = sa.inspect(connection).get_table_names()
        for table in expected(store.table).sorted_tables:
            assert table.name not in here or not connection.execute(sa.select(table)).all()


def test_what_is_missing_in_a_named_schema_is_advised_there(store, other):
    checker = SqlChecker(store.engine(), table=store.table, schema=other)
    store.opened.callback(checker.close)
    with store.admin_engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TABLE {other}.{store.table}")
    with pytest.raises(
        SchemaError, match=rf"Type: idempotent migrate upgrade .* --table {other}\.{store.table} "
    ):
        checker.ping()


@pytest.mark.parametrize("schema", ["a?b", "a%b", "a{b}", "a:b", "a\\b", "", 7])
def test_a_name_that_no_statement_can_contain_is_refused(tmp_path, schema):
    url = f"sqlite:///{tmp_path}/app.db"
    for make in (SqlChecker, TransactionalSqlChecker, OffsetChecker, Outbox):
        with pytest.raises(ConfigurationError, match="invalid schema"):
            make(url, schema=schema)
        with pytest.raises(ConfigurationError, match="SQLite has no schema"):
            make(url, schema="app")


ROLES = {
    # Of its own user's rights, a role of PostgreSQL has none.
    "postgres": [
        "CREATE ROLE {role}",
        "GRANT {role} TO {user}",
        "GRANT USAGE ON SCHEMA public TO {role}",
        "GRANT INSERT ON {table}_effects TO {role}",
    ],
    # MariaDB's add rights, so that which has them all is left.
    "mysql": [
        "CREATE ROLE {role}",
        "GRANT {role} TO '{user}'@'%'",
        "SET DEFAULT ROLE {role} FOR '{user}'@'%'",
        "GRANT INSERT ON {table}_effects TO '{user}'@'%'",
        *(
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {{table}}{each} TO {{role}}"
            for each in ("", "_failures", "_outbox")
        ),
    ],
}
LEAVES = {"postgres": ["SET ROLE {role}", "SET LOCAL ROLE {role}"], "mysql": ["SET ROLE NONE"]}


@pytest.fixture
def lowly(store, other):
    """The URL of a user, and the statements with which he has a role that may use none of the library's tables."""
    name, role = f"u_{store.table[-12:]}", f"r_{store.table[-12:]}"
    tables = [store.table, f"{store.table}_failures", f"{store.table}_outbox", f"{store.table}_effects"]
    words = {"role": role, "user": name, "table": store.table}
    with user_of_tables(store.admin_engine, name, tables if store.kind == "postgres" else []) as url:
        with store.admin_engine.begin() as connection:
            if store.kind == "postgres":
                connection.exec_driver_sql(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {name}")
            for statement in ROLES[store.kind]:
                connection.execute(sa.text(statement.format(**words)))
        yield url, [each.format(**words) for each in LEAVES[store.kind]]
        with store.admin_engine.begin() as connection:
            if store.kind == "postgres":
                connection.exec_driver_sql(f"DROP OWNED BY {role}")
            connection.exec_driver_sql(f"DROP ROLE {role}")


@pytest.mark.parametrize("does", ["nothing", "stores a result", "sends"])
def test_a_changed_role_is_named_and_costs_no_attempt(store, lowly, does):
    url, changes = lowly
    engine = store._engine(url, pool_size=1)
    checker = TransactionalSqlChecker(engine, table=store.table)
    outbox = Outbox(engine, table=store.table)
    store.opened.callback(outbox.close)
    store.opened.callback(checker.close)
    leave = []

    @Registry().consumer("orders", checker=checker, max_attempts=1, store_result=does == "stores a result")
    def handle(message, session: Session):
        session.execute(store.effects.insert().values(id=message.id))
        for change in leave:
            session.execute(sa.text(change))
        if does == "sends":
            outbox.send(session, Message("invoices", BODY))
        return "booked"

    for change in changes:
        leave.append(change)
        first, second = (Message("orders", id=f"{change} {number}") for number in (1, 2))
        for _ in range(2):
            result = handle.process(first)
            if does == "nothing":
                assert result.outcome in (Outcome.PROCESSED, Outcome.DUPLICATE)
            else:
                assert result.outcome is Outcome.UNAVAILABLE, result
                assert "changed the role" in str(result.error)
        leave.clear()
        assert handle.process(second).outcome is Outcome.PROCESSED
        assert handle.process(first).outcome in (Outcome.PROCESSED, Outcome.DUPLICATE)
        booked = store.booked()
        assert booked[first.id] == booked[second.id] == 1


def test_a_schema_of_any_name_is_kept_to(store):
    """Names of users, which PostgreSQL looks for as "$user", may be addresses."""
    mysql = store.kind == "mysql"
    mark = "`" if mysql else '"'
    name = f"{store.table}@it's {mark}.com"
    odd, kind = f"{mark}{name.replace(mark, mark * 2)}{mark}", "DATABASE" if mysql else "SCHEMA"
    url = sa.make_url(store.url)
    with store.admin_engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE {kind} {odd}")
    drop = f"DROP {kind} {odd}" + ("" if mysql else " CASCADE")
    store.opened.callback(lambda: _administer(store, drop))
    engine = sa.create_engine(url.set(database=name) if mysql else url)
    store.opened.callback(engine.dispose)
    if not mysql:

        @sa.event.listens_for(engine, "connect")
        def look(raw, _record):
            raw.execute(f"SET search_path TO {odd}")
            raw.commit()

    upgrade(engine, table=store.table)
    outbox = Outbox(engine, table=store.table)
    checker = TransactionalSqlChecker(engine, table=store.table)
    for each in (outbox, checker):
        store.opened.callback(each.close)

    @Registry().consumer("orders", checker=checker)
    def handle(message, session: Session):
        session.execute(sa.text(f"USE {url.database}" if mysql else "SET search_path TO public"))
        outbox.send(session, Message("invoices", BODY, id=message.id))

    outcomes = [handle.process(Message("orders", id=each)).outcome for each in "1122"]
    assert outcomes == [Outcome.PROCESSED, Outcome.DUPLICATE] * 2
    with engine.connect() as connection:
        for table in (store.table, f"{store.table}_outbox"):
            rows = connection.exec_driver_sql(f"SELECT COUNT(*) FROM {odd}.{table}").scalar()
            assert rows == 2, table


@pytest.mark.parametrize("checker", ["leased", "transactional"])
def test_a_listener_may_leave_a_transaction_open_in_which_it_has_set_something(store, checker):
    engine = store.engine()

    @sa.event.listens_for(engine, "checkout")
    def sets(raw, _record, _proxy):
        cursor = raw.cursor()
        cursor.execute("SET time_zone = '+00:00'" if store.kind == "mysql" else "SET search_path TO public")
        cursor.execute("SELECT 1")
        cursor.fetchall()
        cursor.close()

    kind, options = CHECKERS[checker]
    made = kind(engine, table=store.table, **options)
    store.opened.callback(made.close)
    consumer = Registry().consumer("orders", checker=made)(lambda _: None)
    outcomes = [consumer.process(Message("orders", id=each)).outcome for each in "112"]
    assert outcomes == [Outcome.PROCESSED, Outcome.DUPLICATE, Outcome.PROCESSED]


def _administer(store, statement):
    with store.admin_engine.begin() as connection:
        connection.exec_driver_sql(statement)
