"""What is sent in a transaction is in the outbox if, and only if, the transaction has committed."""

import asyncio
from datetime import UTC, date, datetime
from decimal import Decimal

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Message, Outcome, Registry
from idempotent.errors import ConfigurationError
from idempotent.outbox import Outbox


def note(text, **options):
    return Message("invoices", text.encode(), **options)


@pytest.fixture
def session(sql_store, tables):
    with Session(sql_store.admin_engine) as made:
        yield made


def test_a_commit_writes_all_in_their_order_and_a_rollback_nothing(outbox, session, waiting):
    outbox.send(session, note("lost"))
    session.rollback()
    for number in range(450):
        outbox.send(session, note(str(number)))
    assert waiting() == []
    session.commit()
    assert waiting() == [str(number) for number in range(450)]
    session.commit()
    outbox.send(session, note("more"))
    session.commit()
    assert waiting()[450:] == ["more"]


def test_a_transaction_that_only_sends_is_committed_too(outbox, sql_store, waiting):
    with Session(sql_store.admin_engine) as session, session.begin():
        outbox.send(session, note("1"))
    assert waiting() == ["1"]


def test_a_closed_session_takes_its_messages_with_it(outbox, session, waiting):
    outbox.send(session, note("lost"))
    session.close()
    outbox.send(session, note("kept"))
    session.commit()
    assert waiting() == ["kept"]


def test_a_savepoint_takes_its_messages_with_it(outbox, session, waiting):
    outbox.send(session, note("before"))
    with session.begin_nested():
        outbox.send(session, note("released"))
        inner = session.begin_nested()
        outbox.send(session, note("lost"))
        inner.rollback()
    outer = session.begin_nested()
    with session.begin_nested():
        outbox.send(session, note("released into what is lost"))
    outer.rollback()
    outbox.send(session, note("after"))
    assert waiting() == []
    session.commit()
    assert waiting() == ["before", "released", "after"]


@pytest.mark.parametrize("flushed", [False, True])
def test_a_savepoint_takes_what_was_flushed_in_it(outbox, session, waiting, flushed):
    outbox.send(session, note("kept"))
    savepoint = session.begin_nested()
    outbox.send(session, note("lost"))
    if flushed:
        outbox.flush(session)
    savepoint.rollback()
    session.commit()
    # What was sent before the savepoint was written inside it, and is written again.
    assert waiting() == ["kept"]


def test_what_a_listener_sends_while_the_session_commits_is_written(outbox, session, waiting):
    outbox.send(session, note("first"))
    sa.event.listen(session, "before_commit", lambda session: outbox.send(session, note("late")))
    session.commit()
    assert waiting() == ["first", "late"]


def test_a_connection_writes_at_once(outbox, sql_store, waiting, tables):
    with sql_store.admin_engine.connect() as connection:
        outbox.send(connection, note("lost"))
        connection.rollback()
        outbox.send(connection, note("kept"))
        assert connection.scalar(sa.select(sa.func.count()).select_from(tables.waiting)) == 1
        connection.commit()
    assert waiting() == ["kept"]


def test_a_message_keeps_its_id_headers_and_body(outbox, session, tables):
    headers = {
        "a": "ä",
        "n": 3,
        "bytes": b"\xff",
        b"\xff": "no text",
        "deep": {"list": [None, True, b"1"]},
        "at": datetime(2026, 11, 26, 9, 30, 1, 5, UTC),
        "endless": float("-inf"),
        "price": Decimal("1.10"),
        "like ours": [{"$bytes": "no"}, {"$dict": []}, {"$other": 1}, {7: b"x"}],
    }
    given = outbox.send(
        session, Message("q", b"\x00\xff", id="order-7", headers=headers), order_key="k", to="b"
    )
    made = outbox.send(session, Message("q"))
    outbox.send(session, Message("q", None, key="of the record"))
    session.commit()
    assert given == "order-7"
    assert (len(made), made[14]) == (36, "7")
    limits = dict.fromkeys(range(64), 10)
    first, second, tombstone = outbox.store.read(limits)
    assert (tombstone.body, tombstone.order_key) == (None, "of the record")
    assert (first.message_id, first.body, first.order_key, first.destination) == (
        "order-7",
        b"\x00\xff",
        "k",
        "b",
    )
    assert first.header_values() == headers
    assert (second.message_id, second.order_key, second.header_values()) == (made, None, {})


@pytest.mark.parametrize(
    ("message", "options", "error"),
    [
        (Message("q", id="x" * 256), {}, "the message's id must be a string of 1 to 255.* of 256 characters"),
        (Message("q" * 256), {}, "subject"),
        (Message("q"), {"order_key": ""}, "order_key"),
        (Message("q"), {"order_key": 7}, "order_key"),
        (Message("q", key=b"\xff"), {}, "not UTF-8"),
        (Message("q"), {"to": "x" * 101}, "to must be"),
        (Message("q"), {"delay_s": -1}, "delay_s"),
        (
            Message("q", headers={"a": 1, "at": {1, 2}}),
            {},
            "the header 'at' cannot be stored.*Make it a string",
        ),
        (
            Message("q", headers={"a": 1, "at": [{"deep": date(2026, 1, 1)}]}),
            {},
            "the header 'at' cannot be stored",
        ),
        (Message("q", headers={"half": "\ud800"}), {}, "the header 'half' cannot be stored"),
        (Message("q", headers={7: "seven"}), {}, "the header name 7 is not a string"),
        (b"body", {}, "send takes a Message"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_sent(
    outbox, session, waiting, message, options, error
):
    with pytest.raises(ConfigurationError, match=error):
        outbox.send(session, message, **options)
    session.commit()
    assert waiting() == []


@pytest.mark.parametrize("own", ["Cursor", "ClientCursor"])
@pytest.mark.parametrize("sql_store", ["postgres"], indirect=True)
def test_the_cursors_of_the_application_stay_as_they_are(outbox, sql_store, waiting, own):
    factory = getattr(psycopg, own)
    engine = sa.create_engine(sql_store.url, connect_args={"cursor_factory": factory})
    with Session(engine) as session, session.begin():
        for number in range(3):
            outbox.send(session, note(f"100% of {number}?"))
        outbox.flush(session)
        driver = session.connection().connection.driver_connection
        assert driver.cursor_factory is factory
    with Session(engine) as session, sql_store.admin_engine.begin() as other:
        other.execute(sa.text(f"LOCK TABLE {sql_store.table}_outbox IN ACCESS EXCLUSIVE MODE"))
        session.execute(sa.text("SET LOCAL statement_timeout = 100"))
        driver = session.connection().connection.driver_connection
        outbox.send(session, note("late"))
        with pytest.raises(sa.exc.DBAPIError):
            outbox.flush(session)
        assert driver.cursor_factory is factory
    engine.dispose()
    assert waiting() == [f"100% of {number}?" for number in range(3)]


def test_something_else_than_a_session_is_refused(outbox, sql_store):
    with pytest.raises(ConfigurationError, match="a Session, an AsyncSession or a Connection"):
        outbox.send(sql_store.admin_engine, note("1"))


class TestInAHandler:
    @pytest.fixture
    def consume(self, sql_store):
        def make(handler, checker, **options):
            return Registry().consumer("orders", group="billing", checker=checker, **options)(handler)

        return make

    @pytest.mark.parametrize("batch", [False, True])
    def test_key_effect_and_message_commit_together(self, outbox, sql_store, tables, waiting, consume, batch):
        def handle(message, session: Session):
            session.execute(sql_store.effects.insert().values(id=message.id))
            outbox.send(session, note(f"of {message.id}"))
            if message.id == "2":
                raise ValueError

        consumer = consume(handle, sql_store.transactional())
        given = [Message("orders", id=str(number)) for number in range(4)]
        results = consumer.process_many(given) if batch else [consumer.process(each) for each in given]
        assert [result.outcome for result in results] == [
            Outcome.PROCESSED,
            Outcome.PROCESSED,
            Outcome.FAILED,
            Outcome.PROCESSED,
        ]
        assert sorted(waiting()) == ["of 0", "of 1", "of 3"]
        assert sql_store.booked() == {"0": 1, "1": 1, "3": 1}
        assert consumer.process(given[0]).outcome is Outcome.DUPLICATE
        assert len(waiting()) == 3

    def test_a_handler_that_only_sends_is_committed(self, outbox, sql_store, tables, waiting, consume):
        consumer = consume(
            lambda message, session: outbox.send(session, note(message.id)) and None,
            sql_store.transactional(),
        )
        assert consumer.process(Message("orders", id="1")).outcome is Outcome.PROCESSED
        assert waiting() == ["1"]

    def test_sending_does_not_bare_the_connection_of_the_handler(self, outbox, sql_store, waiting, consume):
        bared = []

        def handle(message, session: Session):
            outbox.send(session, note("1"))
            outbox.flush(session)
            bared.append(session.connection().raw_connection_taken)

        consumer = consume(handle, sql_store.transactional())
        assert consumer.process(Message("orders", id="1")).outcome is Outcome.PROCESSED
        assert bared == [False]

    def test_without_its_tables_the_handler_fails_and_nothing_is_done(self, sql_store, consume):
        outbox = Outbox(sql_store.engine(), table="no_such_table")

        def handle(message, session: Session):
            session.execute(sql_store.effects.insert().values(id=message.id))
            outbox.send(session, note("1"))

        consumer = consume(handle, sql_store.transactional())
        result = consumer.process(Message("orders", id="1"))
        assert result.outcome is not Outcome.PROCESSED
        assert "no_such_table_outbox" in str(result.error)
        assert sql_store.booked() == {}

    def test_a_leased_handler_that_runs_again_sends_the_same_ids(
        self, outbox, sql_store, tables, waiting, consume
    ):
        ids = []

        def handle(message):
            with Session(sql_store.admin_engine) as session, session.begin():
                again = bool(ids)
                mine = []
                if again:
                    mine.append(outbox.send(session, note("another path")))
                mine += [
                    outbox.send(session, note("same", headers={"traceparent": str(again)})) for _ in range(2)
                ]
                mine += [outbox.send(session, note("named " + str(again)), dedup="receipt")]
                ids.append(mine)
            with sql_store.admin_engine.begin() as connection:
                ids[-1] += [outbox.send(connection, note("plain")) for _ in range(2)]
            if not again:
                raise ValueError("after its transactions have committed")

        consumer = consume(handle, sql_store.leased())
        message = Message("orders", id="1")
        assert consumer.process(message).outcome is Outcome.FAILED
        assert consumer.process(message).outcome is Outcome.PROCESSED
        first, second = ids
        assert len(set(first)) == 5
        assert second[1:] == first
        assert second[0] not in first
        assert consumer.process(Message("orders", id="2")).outcome is Outcome.PROCESSED
        assert not set(ids[2]) & set(first)

    @pytest.mark.parametrize("batch", [False, True])
    @pytest.mark.parametrize("is_async", [False, True])
    @pytest.mark.parametrize("alone", [False, True])
    def test_what_a_leased_group_sends_again_has_the_same_id(
        self, outbox, sql_store, tables, waiting, consume, batch, is_async, alone
    ):
        """A batch handler runs again with other messages: it gives the ids, or sends nothing."""
        ids, refused, failed = [], [], []

        def sends(orders):
            with Session(sql_store.admin_engine) as session, session.begin():
                if batch:
                    with pytest.raises(ConfigurationError, match=r"derive that .* Message\(\.\.\., id="):
                        outbox.send(session, note("of a batch"), dedup="invoice")
                    refused.append(len(orders))
                for order in orders:
                    invoice = f"invoice-{order.id}" if batch else None
                    ids.append(outbox.send(session, note(str(order.id), id=invoice)))
            if not failed:
                failed.append(orders)
                raise ValueError("after its transaction has committed")

        def plain(given):
            sends(given if batch else [given])

        async def awaited(given):
            plain(given)

        consumer = consume(awaited if is_async else plain, sql_store.leased(), batch=batch)
        orders = [Message("orders", id=str(number)) for number in range(3)]

        def deliver():
            made = [consumer.process(order) for order in orders] if alone else [consumer.process_many(orders)]
            return [asyncio.run(each) if is_async else each for each in made]

        deliver()
        deliver()
        assert len(failed) == 1
        assert sorted(set(waiting())) == ["0", "1", "2"]
        assert len(ids) > len(set(ids)) == 3
        assert bool(refused) is batch

    @pytest.mark.parametrize("fails", [False, True])
    def test_a_batch_with_a_transaction_sends_what_it_commits(
        self, outbox, sql_store, tables, waiting, consume, fails
    ):
        def handle(orders, session: Session):
            for order in orders:
                outbox.send(session, note(str(order.id)), dedup="is not needed")
            if fails and len(orders) > 1:
                raise ValueError

        consumer = consume(handle, sql_store.transactional(), batch=True)
        results = consumer.process_many([Message("orders", id=str(number)) for number in range(3)])
        assert {result.outcome for result in results} == {Outcome.PROCESSED}
        assert waiting() == ["0", "1", "2"]

    def test_a_handler_that_runs_without_protection_sends_new_ids(
        self, outbox, sql_store, tables, consume, monkeypatch
    ):
        monkeypatch.setenv("IDEMPOTENT_DISABLED", "all")
        ids = []

        def handle(message):
            with Session(sql_store.admin_engine) as session, session.begin():
                ids.append(outbox.send(session, note("same")))

        consumer = consume(handle, sql_store.leased())
        for _ in range(3):
            assert consumer.process(Message("orders", id="1")).outcome is Outcome.PROCESSED
        assert len(set(ids)) == 3
