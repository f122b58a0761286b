"""One connection for each Python worker process, however many tasks it runs."""

import os

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql.types import IntegerType, StructField, StructType
from redis import Redis
from sqlalchemy.pool import NullPool

from idempotent.adapters.spark import IdempotentRun, StoreConfig, idempotent_batches
from idempotent.migrations import upgrade
from tests.adapters.spark.support.frames import numbered

TASKS = 24
PID = StructType([StructField("pid", IntegerType())])


def made_by_redis(store):
    with Redis.from_url(store.url) as client:
        return client.info("stats")["total_connections_received"]


def made_by_mysql(store):
    engine = sa.create_engine(store.url, poolclass=NullPool)
    with engine.connect() as connection:
        return int(connection.execute(sa.text("SHOW GLOBAL STATUS LIKE 'Connections'")).one()[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "made_by"), [("private_redis", made_by_redis), ("private_mariadb", made_by_mysql)]
)
def test_tasks_share_the_connection_of_their_worker(spark, server, made_by, request):
    store = StoreConfig(request.getfixturevalue(server)().url)
    if not store.is_redis:
        upgrade(store.url, table=store.table)
    with IdempotentRun.begin(store, consumer="orders", run_id="r1") as run:
        only_new = idempotent_batches(run, key="k")

        def claim(batches):
            new = sum(batch.num_rows for batch in only_new(batches))
            yield pa.RecordBatch.from_pydict({"pid": pa.array([os.getpid()] * new, pa.int32())})

        before = made_by(store)
        rows = numbered(spark, rows=240, partitions=TASKS).mapInArrow(claim, PID).collect()
        after = made_by(store)
    workers = {row["pid"] for row in rows}
    assert len(rows) == 240
    assert len(workers) < TASKS
    # The second look at the server makes one too.
    assert after - before - 1 == len(workers)
