"""The Session that handlers get: one for a group, on the connection of the key and on no other."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, registry, sessionmaker

from idempotent import Outcome, Registry
from idempotent.errors import ConfigurationError, TransactionEscapedError
from tests.checkers.sql.booking import MODES, book, consumer_of, keys, messages, only, outcomes
from tests.support.stores import SQL

if TYPE_CHECKING:
    from sqlalchemy import Connection  # an annotation whose name cannot be looked up


@pytest.fixture
def effect_of(sql_store):
    """`effect_of(id)`: a row of the effects table as an object, for `session.add`."""
    base = registry()
    effects = sql_store.effects

    class Effect:
        pass

    base.map_imperatively(Effect, effects, primary_key=[effects.c.id])

    def make(name):
        effect = Effect()
        effect.id = name
        return effect

    make.kind = Effect
    yield make
    base.dispose()


DISCARDS = {
    "expunge_all": lambda session: session.expunge_all(),
    "expunge what is new": lambda session: [session.expunge(new) for new in list(session.new)],
}


@pytest.mark.parametrize("savepoints", [False, True])
@pytest.mark.parametrize("discard", DISCARDS)
def test_a_handler_cannot_discard_the_rows_that_another_one_of_its_group_added(
    sql_store, effect_of, discard, savepoints
):
    checker = sql_store.transactional(savepoints=savepoints)

    @Registry().consumer("orders", checker=checker)
    def consumer(message, session: Session):
        DISCARDS[discard](session)
        session.add(effect_of(message.id))

    assert outcomes(consumer.process_many(messages("1", "2", "3"))) == ["processed"] * 3
    assert sql_store.booked() == {"1": 1, "2": 1, "3": 1}


@pytest.mark.parametrize("discard", ["expire_all", "populate_existing"])
def test_a_handler_cannot_discard_the_changes_of_another_one_of_its_group(sql_store, effect_of, discard):
    with sql_store.admin_engine.begin() as connection:
        connection.execute(sql_store.effects.insert(), [{"id": "a"}, {"id": "b"}])
    checker = sql_store.transactional()

    @Registry().consumer("orders", checker=checker)
    def consumer(message, session: Session):
        session.autoflush = False
        if discard == "expire_all":
            session.expire_all()
        else:
            session.execute(sa.select(effect_of.kind).execution_options(populate_existing=True)).all()
        session.get(effect_of.kind, message.id).id = message.id + message.id

    assert outcomes(consumer.process_many(messages("a", "b"))) == ["processed"] * 2
    assert sql_store.booked() == {"aa": 1, "bb": 1}


def test_a_flush_that_fails_is_the_failure_of_the_handler_that_added_the_row(sql_store, effect_of):
    """And not that of the next handler, whose query would have flushed it."""
    checker = sql_store.transactional(savepoints=True)

    @Registry().consumer("orders", checker=checker, max_attempts=2)
    def consumer(message, session: Session):
        session.execute(sa.select(effect_of.kind)).all()
        session.add(effect_of(None if message.id == "2" else message.id))

    results = consumer.process_many(messages("1", "2", "3"))
    assert outcomes(results) == ["processed", "failed", "processed"]
    assert sql_store.booked() == {"1": 1, "3": 1}
    assert keys(checker) == {"1", "3"}


# A Session that sends statements elsewhere


def other_engine(store):
    """Another engine on the same database: its own connections, and so its own transactions."""
    return store.engine(connect_args={"timeout": 0.2}) if store.kind == "sqlite" else store.engine()


def routing(engine_of):
    """A Session class whose `get_bind` is SQLAlchemy's recipe for a primary and a replica."""

    class RoutingSession(Session):
        def get_bind(self, mapper=None, *, clause=None, **options):
            return engine_of(isinstance(clause, sa.sql.dml.UpdateBase) or self._flushing)

    return RoutingSession


@pytest.mark.parametrize("binds", [True, False])
def test_a_sessionmaker_of_two_engines_is_refused(sql_store, binds):
    engine, other = sql_store.engine(), sql_store.engine()
    if binds:
        factory = sessionmaker(engine, binds={sql_store.effects: other})
    else:
        factory = sessionmaker(engine, class_=routing(lambda writes: engine if writes else other))
    with pytest.raises(ConfigurationError, match="sends statements to"):
        sql_store.transactional(factory)


def test_a_sessionmaker_that_names_its_one_engine_twice_is_accepted(sql_store):
    engine = sql_store.engine()
    for factory in (
        sessionmaker(engine, binds={sql_store.effects: engine}),
        sessionmaker(engine, class_=routing(lambda _writes: engine)),
    ):
        consumer = consumer_of(sql_store, sql_store.transactional(factory))
        consumer.process(messages("1")[0])
    assert sql_store.booked() == {"1": 1}


def elsewhere(store, way):
    """(factory, how a handler writes) so that the row is written on another connection than the key."""
    engine, other = store.engine(), other_engine(store)
    insert = store.effects.insert()
    if way == "get_bind that decides late":
        late = []
        factory = sessionmaker(engine, class_=routing(lambda _: other if late else engine))

        def write(session, name):
            late.append(True)
            session.execute(insert.values(id=name))

        return factory, write
    if way == "bind_arguments":
        return sessionmaker(engine), lambda session, name: session.execute(
            insert.values(id=name), bind_arguments={"bind": other}
        )
    if way == "bind_table":

        def write(session, name):
            session.bind_table(insert.table, other)
            session.execute(insert.values(id=name))

        return engine, write
    return engine, lambda session, name: session.connection(bind_arguments={"bind": other}).execute(
        insert.values(id=name)
    )


WAYS = ["get_bind that decides late", "bind_arguments", "bind_table", "connection"]


@pytest.mark.parametrize("swallowed", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_session_writes_on_the_connection_of_its_key_or_not_at_all(sql_store, way, swallowed):
    database, write = elsewhere(sql_store, way)
    checker = sql_store.transactional(database)

    @Registry().consumer("orders", checker=checker, max_attempts=9)
    def consumer(message, session: Session):
        with suppress(TransactionEscapedError) if swallowed else nullcontext():
            write(session, message.id)

    for _ in range(2):
        result = consumer.process(messages("1")[0])
        assert result.outcome is Outcome.FAILED
        assert isinstance(result.error, TransactionEscapedError)
        assert "another connection" in str(result.error)
    assert outcomes(consumer.process_many(messages("1", "2"))) == ["failed"] * 2
    assert sql_store.booked() == {}
    assert keys(checker) == set()


def test_a_session_event_before_the_commit_cannot_write_elsewhere(sql_store):
    engine, other = sql_store.engine(), other_engine(sql_store)
    factory = sessionmaker(engine)
    sa.event.listen(
        factory,
        "before_commit",
        lambda session: session.connection(bind_arguments={"bind": other}).execute(
            sql_store.effects.insert().values(id="elsewhere")
        ),
    )
    checker = sql_store.transactional(factory)
    consumer = consumer_of(sql_store, checker)
    assert outcomes([consumer.process(messages("1")[0])]) == ["failed"]
    assert sql_store.booked() == {}
    assert keys(checker) == set()


# Options of a sessionmaker


def test_a_sessionmaker_with_two_phase_commit_is_refused(sql_store):
    with pytest.raises(ConfigurationError, match="twophase"):
        sql_store.transactional(sessionmaker(sql_store.engine(), twophase=True))


def test_a_sessionmaker_with_an_isolation_level_is_refused(sql_store):
    options = {"isolation_level": "AUTOCOMMIT"}
    with pytest.raises(ConfigurationError, match="isolation_level"):
        sql_store.transactional(sessionmaker(sql_store.engine(), execution_options=options))


def test_a_session_that_does_not_begin_alone_is_begun(sql_store):
    factory = sessionmaker(sql_store.engine(), autobegin=False)
    consumer = consumer_of(sql_store, sql_store.transactional(factory))
    assert outcomes(consumer.process_many(messages("1", "2"))) == ["processed"] * 2
    assert outcomes([consumer.process(messages("1")[0])]) == ["duplicate"]
    assert sql_store.booked() == {"1": 1, "2": 1}


class AuditedSession(Session):
    """A Session with a method of its own, as SQLModel's has."""

    def audit(self, table, name):
        self.execute(table.insert().values(id=name))


def audited(checker, table=None):
    @Registry().consumer("orders", checker=checker)
    def consumer(message, session: AuditedSession):
        session.audit(table, message.id)

    return consumer


def test_a_handler_gets_the_session_class_of_the_sessionmaker(sql_store):
    factory = sessionmaker(sql_store.engine(), class_=AuditedSession)
    consumer = audited(sql_store.transactional(factory), sql_store.effects)
    assert outcomes(consumer.process_many(messages("1", "2"))) == ["processed"] * 2
    assert sql_store.booked() == {"1": 1, "2": 1}


def test_a_session_class_that_the_checker_does_not_make_is_refused(sql_store):
    with pytest.raises(ConfigurationError, match=r"sessionmaker\(engine, class_=AuditedSession\)"):
        audited(sql_store.transactional())
    with pytest.raises(ConfigurationError, match="class_=AuditedSession"):
        audited(sql_store.transactional(sessionmaker(sql_store.engine())))


def test_a_handler_that_takes_a_plain_session_may_get_the_applications(sql_store):
    consumer = consumer_of(
        sql_store, sql_store.transactional(sessionmaker(sql_store.engine(), class_=AuditedSession))
    )
    assert consumer.process(messages("1")[0]).outcome is Outcome.PROCESSED


def defaults_to_none(message, session: Session = None):
    pass


def is_optional(message, session: Session | None = None):
    pass


def is_by_keyword(message, *, connection: Connection | None = None):
    pass


def has_other_defaults(message, attempts: int = 3, log=None, *, name: str | None = None):
    pass


@pytest.mark.parametrize("handler", [defaults_to_none, is_optional, is_by_keyword])
def test_a_session_that_would_always_be_none_is_refused(handler):
    with pytest.raises(ConfigurationError, match=r": (Session|Connection)` without a default"):
        Registry().consumer("orders", checker="db")(handler)


def test_other_parameters_may_have_defaults():
    Registry().consumer("orders", checker="db")(has_other_defaults)


def test_a_listener_before_the_commit_writes_what_the_handler_has_only_noted(sql_store):
    """As with `session.commit()`, which tells the listeners of an idle Session too."""
    factory = sessionmaker(sql_store.engine())

    @sa.event.listens_for(factory, "before_commit")
    def write(session):
        for message in session.info.pop("noted", []):
            book(sql_store, session, message)

    @Registry().consumer("orders", checker=sql_store.transactional(factory))
    def consumer(message, session: Session):
        session.info.setdefault("noted", []).append(message)

    results = [consumer.process(messages("1")[0]), *consumer.process_many(messages("1", "2", "3"))]
    assert outcomes(results) == ["processed", "duplicate", "processed", "processed"]
    assert sql_store.booked() == {"1": 1, "2": 1, "3": 1}


def test_a_connection_that_a_handler_left_in_another_mode_fails_one_message_at_most(sql_store):
    only(sql_store, "postgres")
    left = []

    def leave(message, session):
        if message.id == "1":
            left.append(session.connection().connection.driver_connection.pipeline())
            left[0].__enter__()

    consumer = consumer_of(sql_store, sql_store.transactional(), leave, max_attempts=9)
    assert consumer.process(messages("1")[0]).outcome is Outcome.PROCESSED
    consumer.process(messages("2")[0])
    assert outcomes(consumer.process(m) for m in messages("3", "4")) == ["processed", "processed"]


@pytest.mark.parametrize("together", [False, True], ids=["alone", "group"])
@pytest.mark.parametrize("options", MODES, ids=str)
@pytest.mark.parametrize("moment", ["before_commit", "commit of the engine"])
@pytest.mark.parametrize("how", ["a failed statement", "rollback of the driver"])
def test_a_listener_that_ends_the_transaction_leaves_no_acknowledged_message(
    sql_store, how, moment, options, together
):
    """PostgreSQL answers COMMIT with ROLLBACK, and no error, after an error that a listener has ignored."""
    only(sql_store, *(["postgres"] if how == "a failed statement" else SQL))
    engine = sql_store.engine()
    factory = sessionmaker(engine)

    def end(connection):
        if how == "a failed statement":
            with suppress(sa.exc.DBAPIError):
                connection.execute(sa.text("SELECT * FROM no_such_table"))
        else:
            connection.connection.driver_connection.rollback()

    if moment == "before_commit":
        sa.event.listen(factory, moment, lambda session: end(session.connection()))
    else:
        sa.event.listen(engine, "commit", end)
    consumer = consumer_of(sql_store, sql_store.transactional(factory, **options), max_attempts=9)
    results = consumer.process_many(messages("1", "2") if together else messages("1"))
    assert set(outcomes(results)) == {"failed"}
    assert sql_store.booked() == {}


def fails_within_a_savepoint(connection):
    with suppress(sa.exc.DBAPIError), connection.begin_nested():
        connection.execute(sa.text("SELECT * FROM no_such_table"))


HARMLESS = {
    "an error within a savepoint": fails_within_a_savepoint,
    "a cursor of the driver": lambda connection: connection.connection.cursor().execute("SELECT 1"),
}


@pytest.mark.parametrize("together", [False, True], ids=["alone", "group"])
@pytest.mark.parametrize("how", HARMLESS)
def test_a_listener_to_the_commit_that_ends_nothing_fails_no_message(sql_store, how, together):
    engine = sql_store.engine()
    sa.event.listen(engine, "commit", HARMLESS[how])
    consumer = consumer_of(sql_store, sql_store.transactional(sessionmaker(engine)))
    results = consumer.process_many(messages("1", "2") if together else messages("1"))
    assert set(outcomes(results)) == {"processed"}
    assert set(sql_store.booked().values()) == {1}
