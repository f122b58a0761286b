"""Ways in which applications use Sessions and Connections."""

import asyncio
from contextlib import nullcontext

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, registry, scoped_session, sessionmaker

from idempotent import Message, Registry
from idempotent.errors import ConfigurationError
from idempotent.outbox import Outbox, outbox_tables


def note(text, **options):
    return Message("invoices", text.encode(), **options)


@pytest.fixture
def session(sql_store, tables):
    with Session(sql_store.admin_engine) as made:
        yield made


@pytest.fixture
def user(sql_store):
    """A mapped class; `user(id=1)` is there already."""
    mappers = registry()
    table = sa.Table(f"{sql_store.table}_user", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    table.create(sql_store.admin_engine)

    class User:
        def __init__(self, id):
            self.id = id

    mappers.map_imperatively(User, table)
    with sql_store.admin_engine.begin() as connection:
        connection.execute(table.insert().values(id=1))
    yield User
    sql_store.opened.close()
    table.drop(sql_store.admin_engine)
    mappers.dispose()


@pytest.mark.parametrize("flushed", [False, True])
def test_a_savepoint_that_ends_by_a_failing_flush_takes_its_messages(outbox, session, waiting, user, flushed):
    def insert_again():
        with session.begin_nested():
            outbox.send(session, note("phantom"))
            if flushed:
                outbox.flush(session)
            session.add(user(1))
            session.flush()

    outbox.send(session, note("kept"))
    with pytest.raises(IntegrityError):
        insert_again()
    session.commit()
    assert waiting() == ["kept"]


def test_a_savepoint_that_is_closed_takes_its_messages(outbox, session, waiting):
    outbox.send(session, note("kept"))
    savepoint = session.begin_nested()
    outbox.send(session, note("phantom"))
    outbox.flush(session)
    savepoint.close()
    session.commit()
    assert waiting() == ["kept"]


@pytest.mark.parametrize("moment", ["before_flush", "after_flush", "before_commit"])
def test_what_a_session_sends_first_while_it_commits_is_written(outbox, session, waiting, user, moment):
    sa.event.listen(session, moment, lambda session, *_: outbox.send(session, note("listened")), once=True)
    session.add(user(2))
    session.commit()
    assert waiting() == ["listened"]


def test_what_is_sent_after_the_commit_is_refused(outbox, session, user):
    sa.event.listen(session, "after_commit", lambda session: outbox.send(session, note("late")))
    session.add(user(2))
    with pytest.raises(ConfigurationError, match="has ended"):
        session.commit()


def test_a_session_that_has_failed_and_rolled_back_sends_again(outbox, session, waiting, user):
    session.add(user(1))
    with pytest.raises(IntegrityError):
        session.flush()
    session.rollback()
    outbox.send(session, note("next"))
    session.commit()
    assert waiting() == ["next"]


def test_a_scoped_session_and_one_without_autobegin(outbox, sql_store, tables, waiting):
    scoped = scoped_session(sessionmaker(sql_store.admin_engine))
    outbox.send(scoped, note("scoped"))
    outbox.flush(scoped)
    scoped.commit()
    scoped.remove()
    with Session(sql_store.admin_engine, autobegin=False) as session:
        with pytest.raises(ConfigurationError, match="autobegin=False"):
            outbox.send(session, note("too early"))
        with session.begin():
            outbox.send(session, note("begun"))
    assert waiting() == ["scoped", "begun"]


def test_autocommit_is_refused(outbox, sql_store, tables, waiting):
    with sql_store.admin_engine.connect() as plain:
        connection = plain.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            outbox.send(connection, note("1"))
    assert waiting() == []


@pytest.mark.parametrize("first", ["effect", "send"])
@pytest.mark.parametrize("where", ["engine", "option", "connection", "driver"])
def test_autocommit_of_a_session_is_refused(outbox, sql_store, tables, waiting, where, first):
    engine = sql_store.admin_engine
    if where == "option":
        engine = engine.execution_options(isolation_level="AUTOCOMMIT")
    elif where == "engine":
        engine = sa.create_engine(sql_store.url, isolation_level="AUTOCOMMIT")

    elif where == "driver":
        if sql_store.kind == "sqlite":
            pytest.skip("its driver begins a transaction at the first change")
        engine = sa.create_engine(sql_store.url, connect_args={"autocommit": True})

    def effect():
        if where == "connection":
            session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        session.execute(sql_store.effects.insert().values(id="1"))

    steps = [effect, lambda: outbox.send(session, note("1"))]
    second = steps[first == "effect"]
    with Session(engine) as session:
        for step in steps if first == "effect" else steps[::-1]:
            with pytest.raises(ConfigurationError, match="AUTOCOMMIT") if step is second else nullcontext():
                step()
        session.rollback()
    if where in ("engine", "driver"):
        engine.dispose()
    assert waiting() == []
    assert sql_store.booked() == ({"1": 1} if first == "effect" else {})
    with Session(sql_store.admin_engine) as session, session.begin():
        outbox.send(session, note("2"))
    assert waiting() == ["2"]


def test_an_error_of_the_insert_shows_no_body_and_no_header(sql_store):
    name = f"{sql_store.table}_refusing"
    refusing = outbox_tables(sa.MetaData(), name).waiting
    refusing.append_constraint(sa.CheckConstraint("subject = 'others'"))
    refusing.create(sql_store.admin_engine)
    outbox = Outbox(sql_store.engine(), table=name)
    with Session(sql_store.admin_engine) as session:
        outbox.send(session, note("SECRET-BODY", headers={"token": "SECRET-HEADER"}))
        with pytest.raises(DBAPIError) as error:
            session.commit()
    refusing.drop(sql_store.admin_engine)
    assert "SECRET" not in str(error.value)
    assert f"{name}_outbox" in str(error.value)


def test_what_a_flush_has_written_before_it_failed_is_not_written_again(outbox, waiting, tables, sql_store):
    engine = sql_store.engine()
    inserts = []

    @sa.event.listens_for(engine, "before_cursor_execute")
    def refuse_the_second(_connection, _cursor, statement, *_):
        if "INSERT " in statement and " INTO " in statement:
            inserts.append(statement)
            if len(inserts) == 2:
                raise ValueError("refused")

    with Session(engine) as session:
        for number in range(300):
            outbox.send(session, note(str(number)))
        with pytest.raises(ValueError, match="refused"):
            outbox.flush(session)
        session.commit()
    assert waiting() == [str(number) for number in range(300)]


@pytest.mark.parametrize("charset", ["utf8", "latin1", "ascii"])
@pytest.mark.parametrize("sql_store", ["mysql"], indirect=True)
def test_no_character_is_lost_by_the_character_set_of_a_connection(sql_store, outbox, tables, charset):
    engine = sql_store.engine(connect_args={"charset": charset, "sql_mode": ""})
    with Session(engine) as session, session.begin():
        outbox.send(session, Message("queue \N{SNAKE}", b"", id="ü \N{SNAKE}"), order_key="\N{SNAKE}", to="é")
    with sql_store.admin_engine.connect() as connection:
        (row,) = connection.execute(sa.select(tables.waiting)).all()
    texts = (row.message_id, row.subject, row.order_key, row.destination)
    assert texts == ("ü \N{SNAKE}", "queue \N{SNAKE}", "\N{SNAKE}", "é")


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("sql_store", ["mysql"], indirect=True)
def test_an_empty_body_is_no_tombstone_in_a_session_to_which_it_is_null(sql_store, outbox, tables, awaited):
    bodies = {"empty": b"", "none": None, "one": b"1"}

    def send(session):
        session.execute(sa.text("SET /*M! sql_mode = 'EMPTY_STRING_IS_NULL', */ time_zone = '+05:00'"))
        for delay_s in (0.0, 60.0):
            for name, body in bodies.items():
                outbox.send(session, Message("q", body, id=f"{name} {delay_s}"), delay_s=delay_s)

    async def send_in_task():
        engine = sql_store.async_engine()
        async with AsyncSession(engine) as session, session.begin():
            await session.run_sync(send)
        await engine.dispose()

    if awaited:
        asyncio.run(send_in_task())
    else:
        with Session(sql_store.engine()) as session, session.begin():
            send(session)
    for table, delay_s in ((tables.waiting, 0.0), (tables.delayed, 60.0)):
        with sql_store.admin_engine.connect() as connection:
            found = connection.execute(sa.select(table.c.message_id, table.c.body)).all()
        assert found == [(f"{name} {delay_s}", body) for name, body in bodies.items()]


@pytest.mark.parametrize("field", ["subject", "id", "order_key", "to"])
def test_half_of_a_surrogate_pair_is_refused(outbox, session, field):
    half = "\ud800"
    message = Message(half if field == "subject" else "q", id=half if field == "id" else "1")
    options = {field: half} if field in ("order_key", "to") else {}
    with pytest.raises(ConfigurationError, match="surrogates"):
        outbox.send(session, message, **options)


class TestLeasedHandlers:
    @pytest.fixture
    def consume(self, sql_store):
        def run(handler):
            consumer = Registry().consumer("orders", group="g", checker=sql_store.leased())(handler)
            return consumer.process(Message("orders", id="1"))

        return run

    def test_equal_messages_of_two_transactions_have_two_ids(self, outbox, sql_store, tables, consume):
        ids = []

        def handle(message):
            for _ in range(2):
                with Session(sql_store.admin_engine) as session, session.begin():
                    ids.append(outbox.send(session, note("same")))
            for _ in range(2):
                with sql_store.admin_engine.begin() as connection:
                    ids.append(outbox.send(connection, note("same")))

        consume(handle)
        assert len(set(ids)) == 4

    def test_a_name_that_is_given_twice_is_refused(self, outbox, sql_store, tables, consume):
        def handle(message):
            for body in ("one", "two"):
                with Session(sql_store.admin_engine) as session, session.begin():
                    outbox.send(session, note(body), dedup="receipt")

        assert "dedup='receipt'" in str(consume(handle).error)


@pytest.mark.parametrize("make", [sessionmaker, async_sessionmaker, Session])
def test_an_outbox_takes_no_sessions(make):
    given = make()
    with pytest.raises(
        ConfigurationError,
        match=rf"an Outbox takes an engine, an AsyncEngine or a URL, not a {type(given).__name__}",
    ):
        Outbox(given)
