"""No character set of a connection or a database makes a key or a note unstorable."""

from __future__ import annotations

import secrets

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Message, Registry
from idempotent.admin import KeyFilter
from idempotent.checkers import OffsetChecker, SqlChecker, TransactionalSqlChecker
from idempotent.message import Position
from idempotent.migrations import upgrade

FACE = "\N{GRINNING FACE}"
ACCENT = "\N{LATIN SMALL LETTER E WITH ACUTE}"
PLACES = [
    ("mysql", "charset=utf8"),
    ("mysql", "charset=latin1"),
    ("mysql", "charset=ascii"),
    ("mysql", "charset=gbk"),
    ("postgres", "client_encoding=latin1"),
    ("postgres", "a database in LATIN1"),
]


@pytest.fixture(params=PLACES, ids=lambda place: place[1])
def engine(request):
    """An engine that cannot send, or whose database cannot store, every character."""
    kind, how = request.param
    url = sa.make_url(request.getfixturevalue(f"{kind}_url"))
    if how.startswith("a database"):
        with_database(url, name := f"d_{secrets.token_hex(4)}", how.split()[-1])
        engine = sa.create_engine(url.set(database=name))
    else:
        engine = sa.create_engine(url.update_query_string(how))
    table = f"dedup_{secrets.token_hex(4)}"
    upgrade(url.set(database=engine.url.database), table=table)
    yield engine, table
    engine.dispose()
    if how.startswith("a database"):
        execute(url, f"DROP DATABASE {name} WITH (FORCE)")


def with_database(url, name, encoding):
    execute(
        url, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
    )


def execute(url, statement):
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def consumer_of(checker, subject="orders"):
    def handle(message):
        if message.body == b"bad":
            raise ValueError(f"{ACCENT}{FACE}")

    def in_session(message, session: Session):
        handle(message)

    return Registry().consumer(subject, group="billing", checker=checker, max_attempts=2)(
        handle if isinstance(checker, SqlChecker) else in_session
    )


@pytest.mark.parametrize("kind", [SqlChecker, TransactionalSqlChecker])
def test_any_id_and_any_error_can_be_stored(engine, kind):
    engine, table = engine
    checker = kind(engine, table=table)
    consumer = consumer_of(checker)
    group = [Message("orders", id=text) for text in ("plain", ACCENT, FACE, f"{FACE}{ACCENT}" * 200)]
    bad = Message("orders", b"bad", id=f"bad {FACE}")
    outcomes = [
        *(result.outcome.value for result in consumer.process_many(group)),
        *(consumer.process(message).outcome.value for message in group),
        *(consumer.process(bad).outcome.value for _ in range(3)),
    ]
    assert outcomes == ["processed"] * 4 + ["duplicate"] * 4 + ["failed", "dead", "dead"]
    assert {record.hash for record in checker.admin().list(KeyFilter())} == {
        consumer.binding.requests.of(message).key.hash for message in (*group, bad)
    }
    checker.close()


def test_a_leased_checker_stores_the_text_itself_where_the_database_can(engine):
    engine, table = engine
    if engine.url.database.startswith("d_"):
        pytest.skip("this database cannot")
    checker = SqlChecker(engine, table=table)
    consumer = consumer_of(checker, FACE)
    consumer.process(Message(FACE, b"bad", id=f"bad {FACE}"))
    consumer.process(Message(FACE, b"bad", id=f"bad {FACE}"))
    (record,) = checker.admin().list(KeyFilter(consumer=f"{FACE}:billing"))
    assert record.text == f"{FACE}:billing:bad {FACE}"
    assert record.last_error == f"ValueError: {ACCENT}{FACE}"
    checker.close()


def test_any_partition_can_be_stored(engine):
    engine, table = engine
    checker = OffsetChecker(engine, table=table)
    consumer = consumer_of(checker, FACE)
    checker.begin({consumer.binding.requests.partition(FACE, 0): 0})
    messages = [
        Message(FACE, b"bad" if number else b"", position=Position(FACE, 0, number, number))
        for number in (0, 1)
    ]
    outcomes = [consumer.process(message).outcome.value for message in (*messages, messages[1])]
    assert outcomes == ["processed", "failed", "dead"]
    checker.close()


def test_the_handlers_connection_keeps_its_character_set(mysql_url):
    engine = sa.create_engine(sa.make_url(mysql_url).update_query_string("charset=latin1"))
    table = f"dedup_{secrets.token_hex(4)}"
    upgrade(mysql_url, table=table)
    checker = TransactionalSqlChecker(engine, table=table)
    seen = []

    @Registry().consumer("orders", checker=checker)
    def consumer(message, session: Session):
        seen.append(session.scalar(sa.text("SELECT @@character_set_client")))

    consumer.process(Message("orders", id=FACE))
    assert seen == ["latin1"]
    checker.close()
    engine.dispose()
