"""Several Sessions, threads and databases in one handler, and Sessions that are dropped."""

import contextvars
import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Message, Outcome, Registry
from idempotent.errors import ConfigurationError
from idempotent.outbox import Outbox
from tests.outbox.sending.test_send import note


@pytest.fixture
def run(sql_store):
    """`run(handler)`: as a handler with a leased checker. Raises what the handler raises."""

    def run(handler):
        consumer = Registry().consumer("orders", checker=sql_store.leased())(
            lambda message: handler() and None
        )
        result = consumer.process(Message("orders", id="1"))
        if result.outcome is not Outcome.PROCESSED:
            raise result.error

    return run


@pytest.fixture
def servers_only(sql_store):
    if sql_store.kind == "sqlite":
        pytest.skip("SQLite has one writer at a time")


def test_sessions_that_are_open_together_give_equal_messages_two_ids(
    outbox, sql_store, waiting, servers_only, run
):
    ids = []

    def handler():
        with Session(sql_store.admin_engine) as one, Session(sql_store.admin_engine) as two:
            ids.extend(outbox.send(session, note("same")) for session in (one, two))
            one.commit(), two.commit()

    run(handler)
    assert len(set(ids)) == 2
    assert waiting() == ["same", "same"]


def test_a_name_is_used_once_in_sessions_that_are_open_together(
    outbox, sql_store, waiting, servers_only, run
):
    def handler():
        with Session(sql_store.admin_engine) as one, Session(sql_store.admin_engine) as two:
            outbox.send(one, note("1"), dedup="receipt")
            outbox.send(two, note("2"), dedup="receipt")

    with pytest.raises(ConfigurationError, match="receipt"):
        run(handler)
    assert waiting() == []


def test_threads_of_a_handler_give_equal_messages_their_own_ids(
    outbox, sql_store, waiting, servers_only, run
):
    def send():
        with Session(sql_store.admin_engine) as session, session.begin():
            return outbox.send(session, note("same"))

    def handler():
        with ThreadPoolExecutor(4) as threads:
            started = [threads.submit(contextvars.copy_context().run, send) for _ in range(8)]
            assert len({each.result() for each in started}) == 8

    run(handler)
    assert len(waiting()) == 8


def test_two_outboxes_of_one_table_give_equal_messages_two_ids(outbox, sql_store, waiting, run):
    other = Outbox(sql_store.engine(), table=sql_store.table)
    sql_store.opened.callback(other.close)

    def handler():
        with Session(sql_store.admin_engine) as session, session.begin():
            assert outbox.send(session, note("same")) != other.send(session, note("same"))

    run(handler)
    assert len(waiting()) == 2


def test_a_message_that_was_rolled_back_has_the_same_id_when_it_is_sent_again(
    outbox, sql_store, waiting, run
):
    ids = []

    def handler():
        for number in range(3):
            with Session(sql_store.admin_engine) as session:
                ids.append(outbox.send(session, note("same"), dedup="receipt"))
                ids.append(outbox.send(session, note("equal")))
                (session.rollback if number < 2 else session.commit)()

    run(handler)
    assert ids[:2] == ids[2:4] == ids[4:]
    assert waiting() == ["same", "equal"]


@pytest.mark.slow
def test_a_session_that_is_dropped_gives_its_connection_back(outbox, sql_store, tables, waiting):
    engine = sa.create_engine(sql_store.url, pool_size=1, max_overflow=0, pool_timeout=5)
    for _ in range(3):
        session = Session(engine)
        session.execute(sa.select(sa.literal(1)))
        outbox.send(session, note("dropped"))
        del session
        gc.collect()
    engine.dispose()
    assert waiting() == []


def test_the_copy_headers_of_what_a_handler_got_are_not_sent_on(outbox, sql_store, tables):
    got = {"x-idempotent-key": "incoming", "x-idempotent-attempt": "3", "tenant": "a"}
    with Session(sql_store.admin_engine) as session, session.begin():
        outbox.send(session, note("1", headers=got))
    (message,) = outbox.store.read(dict.fromkeys(range(64), 1))
    assert message.header_values() == {"tenant": "a"}


class TestSeveralDatabases:
    @pytest.fixture
    def other(self, tmp_path):
        engine = sa.create_engine(f"sqlite:///{tmp_path}/other.db")
        with engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE notes (id TEXT)"))
        yield engine
        engine.dispose()

    def test_a_session_that_only_has_binds_is_refused(self, outbox, sql_store, waiting):
        effects = sql_store.effects
        with Session(binds={effects: sql_store.admin_engine}) as session:
            session.execute(effects.insert().values(id="1"))
            outbox.send(session, note("1"))
            with pytest.raises(ConfigurationError, match=r"session\.connection\(bind_arguments"):
                session.commit()
        assert sql_store.booked() == {}
        assert waiting() == []

    @pytest.mark.parametrize("effect_first", [True, False])
    def test_an_effect_in_another_database_is_refused(self, outbox, sql_store, waiting, other, effect_first):
        notes = sa.Table("notes", sa.MetaData(), sa.Column("id", sa.String))
        with Session(sql_store.admin_engine, binds={notes: other}) as session:
            if effect_first:
                session.execute(notes.insert().values(id="1"))
            outbox.send(session, note("1"))
            if not effect_first:
                session.execute(notes.insert().values(id="1"))
            with pytest.raises(ConfigurationError, match="several databases"):
                session.commit()
        with other.connect() as connection:
            assert connection.execute(sa.select(sa.func.count()).select_from(notes)).scalar() == 0
        assert waiting() == []
        with Session(sql_store.admin_engine) as session, session.begin():
            outbox.send(session, note("2"))
        assert waiting() == ["2"]
