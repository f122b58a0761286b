"""Key and effect commit together, or not at all, on every SQL database."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.orm import Session, sessionmaker

from idempotent import Message, Outcome, Registry
from idempotent.admin import KeyFilter
from idempotent.errors import ConfigurationError, StoreUnavailableError, TransactionEscapedError
from idempotent.observe import Event, counters
from tests.support.stores import open_store


def book(store, session, message):
    session.execute(store.effects.insert().values(id=message.id))


def consumer_of(store, checker, handle=None, **options):
    """A consumer that books each message, then does what the test wants in the same transaction."""

    @Registry().consumer("orders", checker=checker, **options)
    def consumer(message, session: Session):
        book(store, session, message)
        if handle:
            handle(message, session)

    return consumer


def keys(checker):
    return {record.text.rpartition(":")[2] for record in checker.admin().list(KeyFilter())}


def messages(*ids):
    return [Message("orders", id=i) for i in ids]


def outcomes(results):
    return [result.outcome.value for result in results]


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


def test_an_engine_in_autocommit_is_refused(sql_store):
    engine = sql_store.engine(isolation_level="AUTOCOMMIT")
    consumer = consumer_of(sql_store, sql_store.transactional(engine))
    if sql_store.kind == "sqlite":  # BEGIN IMMEDIATE makes a transaction all the same
        assert consumer(messages("1")[0]).outcome is Outcome.PROCESSED
    else:
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            consumer.process(messages("1")[0])


ESCAPES = {
    "session.commit": lambda session: session.commit(),
    "connection.commit": lambda session: session.connection().commit(),
    "COMMIT": lambda session: session.execute(sa.text("COMMIT")),
    "COMMIT of the driver": lambda session: session.connection().exec_driver_sql("COMMIT"),
    "COMMIT without parameters": lambda session: (
        session.connection().execution_options(no_parameters=True).exec_driver_sql("COMMIT")
    ),
    "rollback and return": lambda session: session.rollback(),
    "ROLLBACK": lambda session: session.execute(sa.text("  rollback")),
    "begin anew": lambda session: session.execute(sa.text("BEGIN")),
    "swallowed commit": lambda session: swallow(session.commit),
    "raw cursor": lambda session: raw(session, "COMMIT"),
}


def swallow(function):
    with suppress(TransactionEscapedError):
        function()


def raw(session, statement):
    cursor = session.connection().connection.cursor()
    cursor.execute(statement)
    cursor.close()


@pytest.mark.parametrize("escape", ESCAPES)
def test_a_handler_cannot_end_the_transaction_its_key_lives_in(sql_store, escape):
    checker = sql_store.transactional()
    consumer = consumer_of(sql_store, checker, lambda _, session: ESCAPES[escape](session), max_attempts=9)
    result = consumer.process(messages("1")[0])
    assert isinstance(result.error, TransactionEscapedError)
    if escape == "raw cursor":  # the cursor bypasses SQLAlchemy: too late to prevent, but not to tell
        assert result.outcome is Outcome.DEAD
        assert sql_store.booked() == {"1": 1}
        assert keys(checker) == {"1"}
    else:
        assert result.outcome is Outcome.FAILED
        assert sql_store.booked() == {}
        assert keys(checker) == set()


def test_ddl_that_commits_implicitly_is_refused(sql_store):
    checker = sql_store.transactional()

    def create(message, session):
        session.execute(sa.text(f"CREATE TABLE {sql_store.table}_scratch (a INTEGER)"))
        session.execute(sa.text(f"DROP TABLE {sql_store.table}_scratch"))

    result = consumer_of(sql_store, checker, create).process(messages("1")[0])
    if sql_store.kind == "mysql":
        assert isinstance(result.error, TransactionEscapedError)
        assert sql_store.booked() == {}
    else:
        assert result.outcome is Outcome.PROCESSED, "there DDL is part of the transaction"


def test_strict_also_notices_a_transaction_begun_anew_by_a_raw_cursor(sql_store):
    if sql_store.kind == "sqlite":
        pytest.skip("SQLite's driver begins no transaction by itself, so the plain check sees it")

    def restart(message, session):
        raw(session, "ROLLBACK")
        book(sql_store, session, Message("orders", id="stray"))

    loose = consumer_of(sql_store, sql_store.transactional(), restart)
    strict = consumer_of(sql_store, sql_store.transactional(strict=True), restart)
    assert isinstance(strict.process(messages("1")[0]).error, TransactionEscapedError)
    assert sql_store.booked() == {}
    assert loose.process(messages("2")[0]).outcome is Outcome.PROCESSED, "which is why strict=True exists"


def test_strict_commits_what_is_in_order(sql_store):
    consumer = consumer_of(sql_store, sql_store.transactional(strict=True))
    assert outcomes(consumer.process_many(messages("1", "2", "1"))) == ["processed", "processed", "duplicate"]
    assert sql_store.booked() == {"1": 1, "2": 1}


def test_a_swallowed_error_that_aborts_postgresqls_transaction_is_a_failure_not_a_lost_message(sql_store):
    checker = sql_store.transactional()

    def stumble(message, session):
        with suppress(sa.exc.DBAPIError):
            session.execute(sa.text("SELECT * FROM no_such_table"))

    result = consumer_of(sql_store, checker, stumble, max_attempts=2).process(messages("1")[0])
    if sql_store.kind == "postgres":
        assert result.outcome is Outcome.FAILED
        assert sql_store.booked() == {}
    else:
        assert result.outcome is Outcome.PROCESSED
        assert sql_store.booked() == {"1": 1}


def test_work_that_may_fail_goes_into_a_nested_transaction(sql_store):
    def stumble(message, session):
        try:
            with session.begin_nested():
                book(sql_store, session, Message("orders", id="undone"))
                session.execute(sa.text("SELECT * FROM no_such_table"))
        except sa.exc.DBAPIError:
            pass

    consumer = consumer_of(sql_store, sql_store.transactional(), stumble)
    assert outcomes(consumer.process_many(messages("1", "2"))) == ["processed", "processed"]
    assert sql_store.booked() == {"1": 1, "2": 1}


def test_a_connection_that_the_application_invalidates_is_not_used_again(sql_store):
    def give_up(message, session):
        if message.id == "1":
            session.connection().invalidate()

    consumer = consumer_of(sql_store, sql_store.transactional(), give_up)
    assert outcomes(consumer.process(message) for message in messages("1", "2")) == ["failed", "processed"]
    assert sql_store.booked() == {"2": 1}


@pytest.mark.parametrize("ending", [Connection.close, Connection.invalidate])
def test_a_connection_that_the_application_ends_after_the_commit_is_not_used_again(sql_store, ending):
    factory = sessionmaker(sql_store.engine())
    given = []
    sa.event.listen(factory, "after_commit", lambda _: [ending(given.pop()) for _ in given[:]])

    def keep(message, session):
        if message.id == "1":
            given.append(session.connection())

    consumer = consumer_of(sql_store, sql_store.transactional(factory), keep)
    assert outcomes(consumer.process(message) for message in messages("1", "2")) == ["processed", "processed"]
    assert not given
    assert sql_store.booked() == {"1": 1, "2": 1}


def test_a_key_held_by_another_transaction_is_in_progress_and_its_rollback_lets_the_next_one_run(sql_store):
    if sql_store.kind == "sqlite":
        pytest.skip("SQLite has one writer: see the busy file")
    started, finish = threading.Event(), threading.Event()
    slow_results = []

    def wait(message, session):
        started.set()
        finish.wait(20)
        raise ValueError("rolled back")

    slow = consumer_of(sql_store, sql_store.transactional(), wait)
    thread = threading.Thread(target=lambda: slow_results.append(slow.process(messages("1")[0])))
    thread.start()
    assert started.wait(20)
    quick = consumer_of(sql_store, sql_store.transactional(lock_timeout_s=1))
    waiting = quick.process(messages("1")[0])
    assert (waiting.outcome, waiting.retry_after_s) == (Outcome.IN_PROGRESS, 1.0)
    assert outcomes(quick.process_many(messages("1", "2"))) == ["in_progress", "processed"]
    finish.set()
    thread.join(20)
    assert slow_results[0].outcome is Outcome.FAILED
    assert quick.process(messages("1")[0]).outcome is Outcome.PROCESSED
    assert sql_store.booked() == {"1": 1, "2": 1}


def test_waiting_for_a_key_does_not_shorten_the_handlers_own_lock_waits(sql_store):
    if sql_store.kind == "sqlite":
        pytest.skip("SQLite's busy timeout belongs to the engine")
    setting = {"mysql": "SELECT @@innodb_lock_wait_timeout", "postgres": "SHOW lock_timeout"}[sql_store.kind]
    engine = sql_store.engine()
    with engine.connect() as connection:
        before = connection.scalar(sa.text(setting))
    seen = []
    checker = sql_store.transactional(lock_timeout_s=1)
    consumer = consumer_of(
        sql_store, checker, lambda _, session: seen.append(session.scalar(sa.text(setting)))
    )
    consumer.process(messages("1")[0])
    consumer.process_many(messages("2", "3"))
    assert seen == [before] * 3


def test_a_busy_sqlite_file_is_unavailable(sql_store):
    if sql_store.kind != "sqlite":
        pytest.skip("SQLite only")
    blocker = sql_store.engine()
    consumer = consumer_of(
        sql_store, sql_store.transactional(sql_store.engine(connect_args={"timeout": 0.2}))
    )
    with blocker.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        result = consumer.process(messages("1")[0])
    assert result.outcome in (Outcome.UNAVAILABLE, Outcome.IN_PROGRESS)
    assert result.action.value == "hold"
    assert consumer.process(messages("1")[0]).outcome is Outcome.PROCESSED


# Deadlocks


def deadlock(session):
    """What MySQL does to the victim: everything is undone, and an error says so."""
    raw(session, "ROLLBACK")
    session.execute(
        sa.text("SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'Deadlock found'")
    )


@pytest.mark.parametrize("swallowed", [False, True])
@pytest.mark.parametrize("savepoints", [False, True])
def test_a_deadlock_inside_a_group_leaves_no_effect_without_its_key(sql_store, swallowed, savepoints):
    if sql_store.kind != "mysql":
        pytest.skip("1213 is MySQL's; test_two_groups_in_opposite_order covers the others")
    checker = sql_store.transactional(savepoints=savepoints)
    victims = ["3"]

    def handle(message, session):
        if message.id in victims:
            victims.remove(message.id)
            try:
                deadlock(session)
            except sa.exc.OperationalError:
                if not swallowed:
                    raise
            book(sql_store, session, Message("orders", id="3-goes-on"))

    consumer = consumer_of(sql_store, checker, handle, max_attempts=1)
    results = consumer.process_many(messages("1", "2", "3", "4"))
    assert outcomes(results) == ["processed"] * 4, "and no attempt was burnt, or 3 would be dead"
    assert sql_store.booked() == {"1": 1, "2": 1, "3": 1, "4": 1}
    assert keys(checker) == {"1", "2", "3", "4"}
    assert counters.snapshot()[consumer.name, Event.GROUP_REPEATED] >= 1


@pytest.fixture(params=["mysql", "postgres"])
def deadlocking_store(request):
    """A store with more than one writer at a time, whose tables the test may alter."""
    yield from open_store(request.param, request)


def test_a_real_deadlock_between_two_handlers_costs_a_retry_and_no_attempt(deadlocking_store):
    rows = deadlocking_store.effects
    engine = deadlocking_store.engine()
    with engine.begin() as connection:
        connection.execute(rows.insert(), [{"id": "a"}, {"id": "b"}])
    both = threading.Barrier(2, timeout=10)

    def cross(message, session):
        first, second = ("a", "b") if message.id == "1" else ("b", "a")
        session.execute(rows.update().where(rows.c.id == first).values(id=first))
        with suppress(threading.BrokenBarrierError):
            both.wait()
        session.execute(rows.update().where(rows.c.id == second).values(id=second))

    checker = deadlocking_store.transactional()
    if deadlocking_store.kind == "mysql":
        with engine.begin() as connection:
            connection.execute(sa.text(f"ALTER TABLE {rows.name} ADD PRIMARY KEY (id)"))
    consumer = consumer_of(deadlocking_store, checker, cross, max_attempts=1)
    results = []
    threads = [
        threading.Thread(target=lambda m=m: results.append(consumer.process(m))) for m in messages("1", "2")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    both.abort()
    assert outcomes(results) == ["processed", "processed"], [r.error for r in results]
    assert deadlocking_store.booked() == {"a": 1, "b": 1, "1": 1, "2": 1}


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


def test_an_orm_flush_that_violates_a_constraint_is_the_handlers_failure(sql_store):
    engine = sql_store.engine()
    with engine.begin() as connection:
        connection.execute(
            sa.text(f"CREATE UNIQUE INDEX {sql_store.table}_u ON {sql_store.effects.name} (id)")
        )
        connection.execute(sql_store.effects.insert().values(id="2"))
    base = sa.orm.registry()
    effects = sql_store.effects

    class Effect:
        pass

    base.map_imperatively(Effect, effects, primary_key=[effects.c.id])

    @Registry().consumer("orders", checker=sql_store.transactional(engine))
    def consumer(message, session: Session):
        effect = Effect()
        effect.id = message.id
        session.add(effect)  # nothing is sent before the flush

    assert outcomes(consumer.process_many(messages("1", "2", "3"))) == ["processed", "failed", "processed"]
    assert sql_store.booked() == {"1": 1, "2": 1, "3": 1}
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
