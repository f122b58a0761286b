"""An outbox does not grow by what has gone through, a relay not by what waits, and tables may lie in any schema."""

import secrets
import time

import psutil
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Message
from idempotent.migrations import upgrade
from idempotent.outbox import Outbox
from tests.adapters.rabbitmq.rabbit import Rabbit
from tests.outbox.filling import fill
from tests.outbox.picky import Picky, relay, until
from tests.outbox.relay_process import RelayProcess
from tests.support.services import PrivateRabbitMq

MANY = 20_000
MOST_ROUNDS = 40
ROWS = 100_000
MB = 1_000_000
# The interpreter and the drivers alone take about 70; a read and a batch some MB.
MOST_MB = 250
READS = dict.fromkeys(range(64), 8)

on_servers = pytest.mark.parametrize("sql_store", ["mysql", "postgres"], indirect=True)


def read_ms(outbox):
    """The quickest of some reads: a busy machine delays others."""
    times = []
    for _ in range(20):
        began = time.perf_counter()
        outbox.store.read(READS, "")
        times.append((time.perf_counter() - began) * 1000)
    return min(times)


def in_and_out(sql_store, tables, outbox, waiting):
    fill(sql_store.admin_engine, tables.waiting, MANY)
    adapter = Picky()
    with relay(outbox, adapter):
        until(lambda: len(adapter.published) == MANY)
        until(lambda: not waiting())


@pytest.mark.slow
@on_servers
def test_a_relay_with_many_messages_for_a_broker_that_is_away_stays_small_and_drains(
    outbox, tables, waiting, sql_store, spare
):
    server = spare(PrivateRabbitMq)
    rabbit = Rabbit(server.url)
    queue = rabbit.declare(rabbit.name())
    server.stop()
    fill(sql_store.admin_engine, tables.waiting, ROWS, subject=queue)
    with RelayProcess(sql_store, server.url) as process:
        until(lambda: outbox.store.stats().relays == 1)
        memory, sizes = psutil.Process(process.number), []
        for _ in range(16):
            time.sleep(0.5)
            sizes.append(memory.memory_info().rss / MB)
        assert outbox.store.stats().waiting == ROWS
        server.start()
        left = ROWS
        while left:  # however slow the machine is, something is published
            until(lambda before=left: outbox.store.stats().waiting < before, "nothing is published")
            left = outbox.store.stats().waiting
            sizes.append(memory.memory_info().rss / MB)
            time.sleep(0.2)
        process.stop()
    assert max(sizes) < MOST_MB, sizes
    assert rabbit.depth(queue) >= ROWS
    rabbit.clean_up()


@pytest.mark.slow
def test_tables_of_postgresql_are_small_again_after_many_messages(outbox, tables, waiting, sql_store):
    if sql_store.kind != "postgres":
        pytest.skip("VACUUM and its figures are PostgreSQL's")
    name = tables.waiting.name

    def vacuumed():
        """Bytes of the table alone, and of its indexes."""
        with sql_store.admin_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f'VACUUM "{name}"')
            question = sa.text("SELECT pg_relation_size(CAST(:name AS regclass)), pg_indexes_size(:name)")
            return tuple(connection.execute(question, {"name": name}).one())

    sizes = []
    for _ in range(MOST_ROUNDS):
        in_and_out(sql_store, tables, outbox, waiting)
        # VACUUM gives back nothing while another transaction, or autovacuum, looks at the table.
        until(lambda: vacuumed()[0] < 100_000, "the table keeps its size")
        sizes.append(vacuumed()[1])
        # An empty page of an index is used again after a later VACUUM, when no transaction of the server is older, such
        # as one of another test. Without that each round adds as much as the first.
        if sizes[-1] < sizes[0] * len(sizes) / 2:
            return
    pytest.fail(f"pages of the indexes are not used again: {sizes}")


@pytest.mark.slow
@on_servers
def test_reads_are_quick_again_after_an_old_transaction(outbox, tables, waiting, sql_store):
    before = read_ms(outbox)
    with sql_store.engine().connect().execution_options(isolation_level="REPEATABLE READ") as old:
        # Its snapshot keeps deleted rows: PostgreSQL reads over them, about 1 ms for each thousand.
        old.execute(sa.select(sa.func.count()).select_from(tables.waiting))
        for _ in range(2):
            in_and_out(sql_store, tables, outbox, waiting)
        assert old.scalar(sa.select(sa.func.count()).select_from(tables.waiting)) == 0
    until(lambda: read_ms(outbox) < 10 * before + 5, "reads stay slow")


def test_tables_in_another_schema_of_postgresql_are_found_by_the_search_path(postgres_url):
    schema = f"s_{secrets.token_hex(6)}"
    admin = sa.create_engine(postgres_url)
    with admin.begin() as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
    url = sa.make_url(postgres_url).update_query_dict({"options": f"-csearch_path={schema}"})
    engine = sa.create_engine(url)
    outbox = Outbox(engine)
    try:
        upgrade(url.render_as_string(hide_password=False))
        adapter = Picky()
        with Session(engine) as session, session.begin():
            outbox.send(session, Message("invoices", b"1"))
            outbox.send(session, Message("invoices", b"2"))
        with admin.connect() as connection:
            count = sa.text(f"SELECT COUNT(*) FROM {schema}.deduplicate_tbl_outbox")
            assert connection.scalar(count) == 2
        with relay(outbox, adapter):
            until(lambda: sorted(adapter.bodies) == ["1", "2"])
            until(lambda: outbox.store.stats().waiting == 0)
    finally:
        outbox.close()
        engine.dispose()
        with admin.begin() as connection:
            connection.exec_driver_sql(f"DROP SCHEMA {schema} CASCADE")
        admin.dispose()
