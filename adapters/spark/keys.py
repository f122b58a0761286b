"""Key hashes, the same 20 bytes whether Spark's JVM computes them or Python does; and the columns for such values."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from idempotent.adapters.spark.ledger.claims import HASH_BYTES
from idempotent.errors import ConfigurationError, MissingKeyError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HASH_COLUMN: Final = "_idem_key"
"""The hash of a row's key."""
PAYLOAD_COLUMN: Final = "_idem_payload"
"""The fingerprint of a row's payload."""
STATUS_COLUMN: Final = "_idem"
"""The verdict of `emit="status"`; the only one that a caller sees."""
STAYS_COLUMN: Final = "_idem_stays"
"""Whether a row is kept when a frame has several rows with its key."""
_RESERVED: Final = frozenset({HASH_COLUMN, PAYLOAD_COLUMN, STATUS_COLUMN, STAYS_COLUMN})
# Types whose cast to string is one text for each value, whatever the session's settings.
_CAST: Final = re.compile(
    r"string|(var)?char\(\d+\)|tinyint|smallint|int|bigint|decimal\(\d+,0\)|date|boolean"
)
_DECIMAL: Final = re.compile(r"decimal\(\d+,(\d+)\)")
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

Columns: TypeAlias = "str | Column | Sequence[str | Column]"
"""One column or several: names, with any characters in them, and expressions such as `F.col("order.id")`."""


def key_hash(consumer: str, parts: Sequence[Any]) -> bytes:
    """The hash of one key.

    SHA-256, cut to 20 bytes, over the consumer and the parts, each as a netstring: its length in bytes, a colon, the
    bytes (https://cr.yp.to/proto/netstrings.txt). The number 7, the decimal 7.00 and the text "7" are the same key.

    Args:
        consumer: the consumer that claims the key.
        parts: texts, bytes, integers, booleans, dates, finite decimals, and datetimes with a time zone, which are the
            number of microseconds since 1970 in UTC.

    Raises:
        MissingKeyError: a part is None.
        ConfigurationError: a part is of another type, or a text with U+FFFD, which Spark puts for bytes that are no
            UTF-8, or with half a surrogate pair.
    """
    digest = _prefix(consumer).copy()
    for part in parts:
        digest.update(_netstring(_encoded(part)))
    return digest.digest()[:HASH_BYTES]


def with_hash(df: DataFrame, consumer: str, key: Columns) -> DataFrame:
    """The frame with the hash of each row's key in `HASH_COLUMN`, computed in the JVM. A null key fails the job.

    Raises:
        ConfigurationError: no such column, or one whose values have several texts, such as a float.
    """
    from pyspark.sql import functions as F

    parts = listed(key)
    for part in parts:
        if isinstance(part, str) and part not in df.columns:
            raise ConfigurationError(f"no column {part!r} for the key; there are {', '.join(df.columns)}")
    if not parts:
        raise ConfigurationError("a key has at least one column")
    columns = columns_of(parts)
    types = df.select(*columns).dtypes

    def netstring(column: Column, name: str, kind: str) -> Column:
        # A cast keeps a text's bytes. `encode` would decode them first, and map all invalid UTF-8 to one text.
        data = column if kind == "binary" else _text(column, name, kind).cast("binary")
        return F.concat(F.octet_length(data).cast("string").cast("binary"), F.lit(bytearray(b":")), data)

    head = F.lit(bytearray(_netstring(consumer.encode())))
    whole = F.concat(head, *(netstring(column, *each) for column, each in zip(columns, types, strict=True)))
    hashed = F.unhex(F.substring(F.sha2(whole, 256), 1, 2 * HASH_BYTES))
    names = ", ".join(name for name, _ in types)
    null_key = F.raise_error(F.lit(f"null key: a row has no value in one of {names}"))
    return df.withColumn(HASH_COLUMN, F.coalesce(hashed, null_key.cast("binary")))


def _text(column: Column, name: str, kind: str) -> Column:
    from pyspark.sql import functions as F

    if _CAST.fullmatch(kind):
        return column.cast("string")
    if kind == "timestamp":
        return F.unix_micros(column).cast("string")
    if scale := _DECIMAL.fullmatch(kind):
        # A cast writes 1E-7 or 0.0000001, as the session has it; this has commas between thousands, always.
        plain = F.translate(F.format_number(column, int(scale[1])), ",", "")
        return F.regexp_replace(plain, r"\.?0+$", "")
    raise ConfigurationError(
        f"column {name!r} is of type {kind}, which has more than one text for the same value: "
        "cast it to string first, in the form that you want to compare"
    )


def listed(columns: Columns) -> list[str | Column]:
    """The columns as a list. Neither a text nor a Column is a sequence of them."""
    from pyspark.sql import Column

    return [columns] if isinstance(columns, (str, Column)) else list(columns)


def columns_of(columns: Columns) -> list[Column]:
    """The columns as Spark takes them."""
    from pyspark.sql import functions as F

    return [F.col(quoted(each)) if isinstance(each, str) else each for each in listed(columns)]


def names_of(key: Columns) -> list[str]:
    """Column names as a list; a single name may be given as plain text.

    Raises:
        ConfigurationError: a Column, which only Spark can evaluate.
    """
    names = [each for each in listed(key) if isinstance(each, str)]
    if len(names) < len(listed(key)):
        raise ConfigurationError(
            "a key in a task is made of names, or a function of a row: a Column is for run.dedup, bulk_dedup and "
            "foreach_batch. Give it a name first: df.withColumn"
        )
    return names


def quoted(name: str) -> str:
    """A column name for Spark, with any characters in it."""
    return f"`{name.replace('`', '``')}`"


def refuse_reserved(columns: Sequence[str]) -> None:
    """Refuse a frame that already has one of this package's columns.

    Raises:
        ConfigurationError: the frame has a column with a reserved name.
    """
    # Spark ignores the case of column names.
    taken = [name for name in columns if name.lower() in _RESERVED]
    if taken:
        raise ConfigurationError(
            f"columns named {', '.join(taken)} are this package's own: rename or drop them"
        )


@lru_cache(maxsize=8)
def _prefix(consumer: str) -> hashlib._Hash:
    return hashlib.sha256(_netstring(consumer.encode()))


def _netstring(data: bytes) -> bytes:
    return b"%d:%b" % (len(data), data)


def _bytes_of(text: str) -> bytes:
    if "\ufffd" in text:
        raise ConfigurationError(
            "a key has U+FFFD, which stands for bytes that are no UTF-8, whatever they were: different keys would be "
            "one. Cast the column to binary"
        )
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ConfigurationError("a key has half a surrogate pair, which is no text: use its bytes") from None


def _encoded(part: Any) -> bytes:
    if isinstance(part, str):
        return _bytes_of(part)
    if isinstance(part, (bytes, bytearray)):
        return bytes(part)
    if isinstance(part, bool):
        return str(part).lower().encode()
    if isinstance(part, int):
        return str(part).encode()
    if type(part) is dt.date:
        return part.isoformat().encode()
    if isinstance(part, Decimal) and part.is_finite():
        text = f"{part:f}"
        # Spark's zero has no sign.
        return (text.rstrip("0").rstrip(".") if "." in text else text).encode() if part else b"0"
    if isinstance(part, dt.datetime) and part.utcoffset() is not None:
        return str((part - _EPOCH) // dt.timedelta(microseconds=1)).encode()
    if part is None:
        raise MissingKeyError("null key: a row has no value in a part of its key")
    raise ConfigurationError(
        "a key is made of texts, bytes, integers, booleans, dates, finite decimals and datetimes with a time zone, "
        f"not of {type(part).__name__}: turn it into the text that you want to compare"
    )
