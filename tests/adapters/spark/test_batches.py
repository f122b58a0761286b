"""Arrow batches are filtered, and passed on as they are when nothing has to be done to them."""

import pyarrow as pa

from idempotent.adapters.spark.ledger.run_claims import RowVerdict
from idempotent.adapters.spark.tasks.filters import only_new


def batch(*numbers):
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64())})


def test_a_batch_of_new_rows_is_not_copied():
    whole = batch(*range(10))
    assert only_new(whole, [RowVerdict.NEW] * 10) is whole


def test_only_rows_that_are_new_are_left():
    verdicts = [RowVerdict.NEW, RowVerdict.DUPLICATE, RowVerdict.CONFLICT, RowVerdict.NEW]
    assert only_new(batch(1, 2, 3, 4), verdicts)["n"].to_pylist() == [1, 4]
