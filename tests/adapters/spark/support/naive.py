"""The obvious filter: keep a row whose key is new. It is right until Spark evaluates it again."""

import sqlite3
from contextlib import closing
from itertools import islice

import pyarrow as pa


def make(file):
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE seen (k TEXT PRIMARY KEY)")


def keep_unseen_rows(file, chunk=100):
    """For mapPartitions. Looks up a chunk of keys at once, as such filters do."""

    def run(rows):
        source = iter(rows)
        while part := list(islice(source, chunk)):
            is_new = _insert(file, [row["k"] for row in part])
            yield from (row for row, new in zip(part, is_new, strict=True) if new)

    return run


def keep_unseen_batches(file):
    """For mapInArrow."""

    def run(batches):
        for batch in batches:
            yield batch.filter(pa.array(_insert(file, batch.column("k").to_pylist())))

    return run


def _insert(file, keys):
    insert = "INSERT OR IGNORE INTO seen VALUES (?)"
    with closing(sqlite3.connect(file, timeout=60)) as connection, connection:
        return [connection.execute(insert, (key,)).rowcount == 1 for key in keys]
