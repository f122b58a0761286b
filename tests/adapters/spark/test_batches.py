"""Arrow batches: joined when they are small, and passed on as they are when nothing has to be done to them."""

import pyarrow as pa
import pytest

from idempotent.adapters.spark.ledger.run_claims import RowVerdict
from idempotent.adapters.spark.tasks.filters import gathered, only_new


def batch(*numbers):
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64())})


@pytest.mark.parametrize(
    ("sizes", "joined"),
    [
        ([], []),
        ([0], [0]),
        ([0, 0], []),
        ([1, 1, 1], [3]),
        ([2, 2, 2, 2, 1], [4, 4, 1]),
        ([0, 9, 0, 1], [9, 1]),
    ],
)
def test_small_batches_are_joined_until_there_are_enough_rows(sizes, joined):
    numbers = iter(range(100))
    batches = [batch(*[next(numbers) for _ in range(size)]) for size in sizes]
    result = list(gathered(batches, 3))
    assert [each.num_rows for each in result] == joined
    assert [number for each in result for number in each["n"].to_pylist()] == list(range(sum(sizes)))


def test_a_large_batch_is_not_copied():
    large = batch(*range(10))
    assert next(gathered([large], 3)) is large
    assert only_new(large, [RowVerdict.NEW] * 10) is large


def test_only_rows_that_are_new_are_left():
    verdicts = [RowVerdict.NEW, RowVerdict.DUPLICATE, RowVerdict.CONFLICT, RowVerdict.NEW]
    assert only_new(batch(1, 2, 3, 4), verdicts)["n"].to_pylist() == [1, 4]
