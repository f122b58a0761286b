"""Key and effect commit together, or not at all, on every SQL database."""

from __future__ import annotations

import gc
import sqlite3
import time

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.orm import Session, sessionmaker

from idempotent import Outcome, Registry
from idempotent.admin import KeyFilter
from idempotent.errors import ConfigurationError, StoreUnavailableError
from tests.checkers.sql.booking import book, consumer_of, keys, messages, outcomes


def test_the_effect_happens_once_and_with_its_key(sql_store):
    checker = sql_store.transactional()
    consumer = consumer_of(sql_store, checker)
    assert outcomes(consumer(m) for m in messages("1", "1", "2")) == ["processed", "duplicate", "processed"]
    assert sql_store.booked() == {"1": 1, "2": 1}
    assert keys(checker) == {"1", "2"}


def test_an_exception_rolls_effect_and_key_back(sql_store):
    checker = sql_store.transactional()

    def fail(message, session):
        raise ValueError("no")

    consumer = consumer_of(sql_store, checker, fail, max_attempts=2)
    assert outcomes(consumer.process(m) for m in messages("1", "1", "1")) == ["failed", "dead", "dead"]
    assert sql_store.booked() == {}


def test_a_harmless_exception_records_the_key_and_drops_what_the_handler_wrote(sql_store):
    checker = sql_store.transactional()

    def fail(message, session):
        raise KeyError("already shipped")

    consumer = consumer_of(sql_store, checker, fail, idempotent_for=KeyError)
    assert outcomes(consumer.process(m) for m in messages("1", "1")) == ["ignored", "duplicate"]
    assert sql_store.booked() == {}
    assert keys(checker) == {"1"}


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_rolls_back_and_propagates(sql_store, stop):
    checker = sql_store.transactional()
    interrupts = [stop()]

    def interrupt(message, session):
        if interrupts:
            raise interrupts.pop()

    consumer = consumer_of(sql_store, checker, interrupt, max_attempts=1)
    with pytest.raises(stop):
        consumer.process(messages("1")[0])
    assert sql_store.booked() == {}
    assert consumer.process(messages("1")[0]).outcome is Outcome.PROCESSED


def test_the_handler_may_take_a_connection(sql_store):
    @Registry().consumer("orders", checker=sql_store.transactional())
    def consumer(message, connection: Connection):
        book(sql_store, connection, message)

    assert outcomes(consumer(m) for m in messages("1", "1")) == ["processed", "duplicate"]
    assert sql_store.booked() == {"1": 1}


def test_the_session_comes_from_the_applications_sessionmaker(sql_store):
    class AuditedSession(Session):
        pass

    engine = sql_store.engine()
    checker = sql_store.transactional(sessionmaker(engine, class_=AuditedSession))
    seen = []
    consumer = consumer_of(sql_store, checker, lambda _, session: seen.append(type(session)))
    assert consumer(messages("1")[0]).outcome is Outcome.PROCESSED
    assert issubclass(seen[0], AuditedSession)


def test_a_sessionmaker_without_an_engine_is_refused(sql_store):
    with pytest.raises(ConfigurationError, match="one engine"):
        sql_store.transactional(sessionmaker())


@pytest.mark.parametrize("together", [False, True], ids=["alone", "group"])
@pytest.mark.parametrize("way", ["engine", "listener"])
def test_an_engine_in_autocommit_is_refused_before_a_claim(sql_store, way, together):
    """The claim would be final, and the message a duplicate once the engine is mended."""
    engine = sql_store.engine(**({"isolation_level": "AUTOCOMMIT"} if way == "engine" else {}))
    if way == "listener":
        sa.event.listen(engine, "connect", lambda driver, _: autocommit(driver))
    wrong, right = sql_store.transactional(engine), sql_store.transactional()
    named = messages("1", "2") if together else messages("1")
    if sql_store.kind == "sqlite":  # BEGIN IMMEDIATE makes a transaction all the same
        wrong = right
    else:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
                consumer_of(sql_store, wrong).process_many(named)
    assert set(outcomes(consumer_of(sql_store, right).process_many(named))) == {"processed"}
    assert len(sql_store.booked()) == len(named)


def autocommit(driver) -> None:
    if isinstance(driver, sqlite3.Connection):
        driver.isolation_level = None
    elif callable(driver.autocommit):
        driver.autocommit(True)
    else:
        driver.autocommit = True


@pytest.mark.parametrize("savepoints", [False, True])
def test_a_deferred_constraint_that_fails_at_commit_fails_its_own_message_only(sql_store, savepoints):
    if sql_store.kind == "mysql":
        pytest.skip("InnoDB has no deferred constraints")
    engine = sql_store.engine()
    if sql_store.kind == "sqlite":
        sa.event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys=ON"))
    parent, child = f"{sql_store.table}_p", f"{sql_store.table}_c"
    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE TABLE {parent} (id VARCHAR(10) PRIMARY KEY)"))
        connection.execute(
            sa.text(
                f"CREATE TABLE {child} (id VARCHAR(10) REFERENCES {parent} (id) DEFERRABLE INITIALLY DEFERRED)"
            )
        )
    checker = sql_store.transactional(engine, savepoints=savepoints)

    def refer(message, session):
        session.execute(sa.text(f"INSERT INTO {child} VALUES (:id)"), {"id": message.id})
        if message.id != "3":
            session.execute(sa.text(f"INSERT INTO {parent} VALUES (:id)"), {"id": message.id})

    consumer = consumer_of(sql_store, checker, refer, max_attempts=2)
    results = consumer.process_many(messages("1", "2", "3", "4", "5"))
    assert outcomes(results) == ["processed", "processed", "failed", "processed", "processed"]
    assert isinstance(results[2].error, sa.exc.IntegrityError)
    assert consumer.process(messages("3")[0]).outcome is Outcome.DEAD, "its second attempt was its last"
    assert sql_store.booked() == {"1": 1, "2": 1, "4": 1, "5": 1}
    with engine.begin() as connection:
        connection.execute(sa.text(f"DROP TABLE {child}"))
        connection.execute(sa.text(f"DROP TABLE {parent}"))


def test_an_orm_flush_that_violates_a_constraint_is_the_handlers_failure(altered_sql_store):
    engine = altered_sql_store.engine()
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                f"CREATE UNIQUE INDEX {altered_sql_store.table}_u ON {altered_sql_store.effects.name} (id)"
            )
        )
        connection.execute(altered_sql_store.effects.insert().values(id="2"))
    base = sa.orm.registry()
    effects = altered_sql_store.effects

    class Effect:
        pass

    base.map_imperatively(Effect, effects, primary_key=[effects.c.id])

    @Registry().consumer("orders", checker=altered_sql_store.transactional(engine))
    def consumer(message, session: Session):
        effect = Effect()
        effect.id = message.id
        session.add(effect)  # nothing is sent before the flush

    assert outcomes(consumer.process_many(messages("1", "2", "3"))) == ["processed", "failed", "processed"]
    assert altered_sql_store.booked() == {"1": 1, "2": 1, "3": 1}
    base.dispose()


def test_session_events_of_the_application_fire_after_the_commit(sql_store):
    committed = []
    engine = sql_store.engine()
    factory = sessionmaker(engine)
    sa.event.listen(factory, "after_commit", lambda session: committed.append(sql_store.booked()))
    consumer = consumer_of(sql_store, sql_store.transactional(factory))
    consumer.process(messages("1")[0])
    assert committed == [{"1": 1}]


def test_the_applications_pool_gets_its_connections_back(sql_store):
    engine = sql_store.engine(pool_size=1, max_overflow=0, pool_timeout=2)
    checker = sql_store.transactional(engine)

    def fail_odd(message, session):
        if int(message.id) % 2:
            raise ValueError(message.id)

    consumer = consumer_of(sql_store, checker, fail_odd)
    for _ in range(3):
        consumer.process_many(messages(*map(str, range(6))))
        consumer.process(messages("1")[0])
    assert engine.pool.checkedout() == 0


def test_an_unreachable_database_is_unavailable_and_the_error_hides_the_password(sql_store):
    if sql_store.kind == "sqlite":
        url = "sqlite:////no/such/folder/x.db"
    else:
        url = sa.make_url(sql_store.url).set(port=1, password="hunter2").render_as_string(hide_password=False)
    from idempotent.checkers import TransactionalSqlChecker

    consumer = consumer_of(sql_store, TransactionalSqlChecker(url))
    result = consumer.process(messages("1")[0])
    assert result.outcome is Outcome.UNAVAILABLE
    assert isinstance(result.error, StoreUnavailableError)
    assert "hunter2" not in str(result.error)


def test_a_connection_error_of_another_service_is_the_handlers_failure_and_counts(sql_store):
    def call(message, session):
        raise ConnectionError("the tax service is down")

    consumer = consumer_of(sql_store, sql_store.transactional(), call, max_attempts=2)
    assert outcomes(consumer.process(m) for m in messages("1", "1")) == ["failed", "dead"]


@pytest.mark.parametrize("took_s", [0.0, 1.2])
def test_after_a_handler_of_half_the_retention_a_key_is_kept_for_all_of_it(sql_store, took_s):
    checker = sql_store.transactional(retention_s=2.0)
    consumer_of(sql_store, checker, lambda *_: time.sleep(took_s), max_attempts=1).process(messages("1")[0])
    (record,) = checker.admin().list(KeyFilter())
    kept_s = (record.expires_at_us - record.fence) / 1_000_000
    assert (kept_s > 3.0) == (took_s > 1.0)


def test_a_message_leaves_nothing_to_the_search_for_cycles(sql_store):
    consumer = consumer_of(sql_store, sql_store.transactional())
    assert outcomes(consumer.process_many(messages("1", "2"))) == ["processed"] * 2
    gc.collect()
    gc.disable()
    try:
        found = []
        for part in range(3):  # threads that earlier tests have left make some as well
            for number in range(20):
                consumer.process(messages(f"m{part}-{number}")[0])
            found.append(gc.collect())
        assert min(found) < 20, f"less than an object a message: {found}"
    finally:
        gc.enable()
