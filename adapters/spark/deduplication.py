"""One row of each key of a frame, the same one in every evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from idempotent.adapters.spark.columns import HASH_COLUMN, PAYLOAD_COLUMN, STAYS_COLUMN, quoted
from idempotent.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_UNSORTABLE: Final = ("map", "variant")


def one_per_key(df: DataFrame, order_by: Sequence[str | Column]) -> DataFrame:
    """The first row of each key by `order_by`, and then by all columns.

    With `PAYLOAD_COLUMN`, also the rows of a key whose payload is not the first one's.

    Raises:
        ConfigurationError: maps or variants among the columns, which have no order, and no `order_by`.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    rest = [name for name, kind in df.dtypes if name != HASH_COLUMN and not _is_unsortable(kind)]
    if len(rest) + 1 < len(df.columns) and not order_by:
        raise ConfigurationError(
            "maps and variants have no order: name in order_by the columns that decide which row of a key stays"
        )
    order = [F.col(quoted(each)) if isinstance(each, str) else each for each in order_by]
    ties = [F.col(quoted(name)) for name in rest]
    window = Window.partitionBy(HASH_COLUMN).orderBy(*order, *ties)
    stays = F.row_number().over(window) == 1
    if PAYLOAD_COLUMN in df.columns:
        stays |= F.first(PAYLOAD_COLUMN).over(window) != F.col(PAYLOAD_COLUMN)
    return df.withColumn(STAYS_COLUMN, stays).where(STAYS_COLUMN).drop(STAYS_COLUMN)


def with_payload(df: DataFrame, payload: Sequence[str]) -> DataFrame:
    """The frame with a fingerprint of these columns in `PAYLOAD_COLUMN`."""
    from pyspark.sql import functions as F

    return df.withColumn(PAYLOAD_COLUMN, F.xxhash64(*(F.col(quoted(name)) for name in payload)))


def _is_unsortable(kind: str) -> bool:
    return any(word in kind for word in _UNSORTABLE)
