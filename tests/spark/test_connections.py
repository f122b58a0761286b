"""One connection for each Python worker process, however many tasks it runs."""

import os

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql.types import IntegerType, StructField, StructType
from redis import Redis
from sqlalchemy.pool import NullPool

from idempotent.adapters.spark import IdempotentRun, idempotent_batches
from tests.spark.frames import numbered

TASKS = 24
PID = StructType([StructField("pid", IntegerType())])


def clients_of_redis(store):
    with Redis.from_url(store.url) as client:
        database = str(client.connection_pool.connection_kwargs["db"])
        own = str(client.client_id())
        return {each["id"] for each in client.client_list() if each["db"] == database} - {own}


def clients_of_mysql(store):
    engine = sa.create_engine(store.url, poolclass=NullPool)
    with engine.connect() as connection:
        found = sa.text(
            "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
        )
        return set(connection.execute(found).scalars())


CLIENTS = {"redis": clients_of_redis, "mysql": clients_of_mysql}


@pytest.mark.parametrize("kind", ["redis", "mysql"])
def test_tasks_share_the_connection_of_their_worker(spark, kind, request):
    store = request.getfixturevalue(f"{kind}_store")
    with IdempotentRun.begin(store, consumer="orders", run_id="r1") as run:
        only_new = idempotent_batches(run, key="k")

        def claim(batches):
            new = sum(batch.num_rows for batch in only_new(batches))
            yield pa.RecordBatch.from_pydict({"pid": pa.array([os.getpid()] * new, pa.int32())})

        before = CLIENTS[kind](store)
        rows = numbered(spark, rows=240, partitions=TASKS).mapInArrow(claim, PID).collect()
        after = CLIENTS[kind](store)
    workers = {row["pid"] for row in rows}
    assert len(rows) == 240
    assert len(workers) < TASKS
    assert len(after - before) == len(workers)
