"""One row of each key of a frame, the same one in every evaluation, and of these the new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from idempotent.adapters.spark.keys import (
    HASH_COLUMN,
    PAYLOAD_COLUMN,
    STATUS_COLUMN,
    STAYS_COLUMN,
    Columns,
    columns_of,
    listed,
    quoted,
    refuse_reserved,
    with_hash,
)
from idempotent.adapters.spark.tasks.filters import BatchFilter
from idempotent.adapters.spark.tasks.handle import RunHandle
from idempotent.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Spark's types without an order. By name: some are not in every version of PySpark.
_UNSORTABLE: Final = frozenset({"MapType", "VariantType", "GeometryType", "GeographyType"})
_NOT_FOR_PYTHON: Final = frozenset({"CalendarIntervalType"})


def new_rows(
    df: DataFrame,
    handle: RunHandle,
    *,
    key: Columns,
    order_by: Columns,
    payload: Columns,
    status: bool,
    unique: bool,
) -> DataFrame:
    """The rows that `IdempotentRun.dedup` returns. Raises as it does."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    refuse_reserved(df.columns)
    schema = df.schema
    intervals = [field.name for field in schema if _contains(field.dataType, _NOT_FOR_PYTHON)]
    if intervals:
        raise ConfigurationError(
            f"columns {', '.join(intervals)} are calendar intervals, which Spark does not pass to Python: "
            "cast them to string"
        )
    frame = with_hash(df, handle.ref.consumer, key)
    if listed(payload):
        frame = frame.withColumn(PAYLOAD_COLUMN, F.xxhash64(*columns_of(payload)))
    if not unique:
        frame = one_per_key(frame, order_by)
    if status:
        schema = StructType([*schema.fields, StructField(STATUS_COLUMN, StringType(), nullable=False)])
    # PySpark's mapInArrow takes a dot in a column's name for a field of a struct, and has no way to quote it.
    plain = [f"c{at}" for at in range(len(df.columns))]
    renamed = StructType(
        [
            StructField(name, field.dataType, field.nullable, field.metadata)
            for name, field in zip([*plain, STATUS_COLUMN], schema, strict=False)
        ]
    )
    filtered = frame.toDF(*plain, *frame.columns[len(plain) :]).mapInArrow(
        BatchFilter(handle, status=status), renamed
    )
    return filtered.toDF(*schema.names)


def one_per_key(df: DataFrame, order_by: Columns) -> DataFrame:
    """The first row of each key by `order_by`, and then by all columns.

    With `PAYLOAD_COLUMN`, also the rows of a key whose payload is not the first one's.

    Raises:
        ConfigurationError: columns without an order, such as maps, and no `order_by`.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    rest = [
        field.name
        for field in df.schema
        if field.name != HASH_COLUMN and not _contains(field.dataType, _UNSORTABLE)
    ]
    order = columns_of(order_by)
    if len(rest) + 1 < len(df.columns) and not order:
        raise ConfigurationError(
            "maps and variants have no order: name in order_by the columns that decide which row of a key stays"
        )
    ties = [F.col(quoted(name)) for name in rest]
    window = Window.partitionBy(HASH_COLUMN).orderBy(*order, *ties)
    stays = F.row_number().over(window) == 1
    if PAYLOAD_COLUMN in df.columns:
        stays |= F.first(PAYLOAD_COLUMN).over(window) != F.col(PAYLOAD_COLUMN)
    return df.withColumn(STAYS_COLUMN, stays).where(STAYS_COLUMN).drop(STAYS_COLUMN)


def _contains(kind: Any, names: frozenset[str]) -> bool:
    """Whether a type, or one inside it, is one of these."""
    if type(kind).__name__ in names:
        return True
    if hasattr(kind, "sqlType"):  # a user-defined type
        return _contains(kind.sqlType(), names)
    inside = [getattr(kind, part, None) for part in ("elementType", "keyType", "valueType")]
    inside += [field.dataType for field in getattr(kind, "fields", ())]
    return any(part is not None and _contains(part, names) for part in inside)
