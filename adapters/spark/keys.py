"""Key hashes, the same 20 bytes whether Spark's JVM computes them or Python does; and the columns for such values."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

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
_JVM_TYPES: Final = frozenset({"string", "binary", "tinyint", "smallint", "int", "bigint", "date"})


def key_hash(consumer: str, parts: Sequence[Any]) -> bytes:
    """The hash of one key.

    SHA-256, cut to 20 bytes, over the consumer and the parts, each as a netstring: its length in bytes, a colon, the
    bytes (https://cr.yp.to/proto/netstrings.txt). The number 7 and the text "7" are the same key.

    Args:
        consumer: the consumer that claims the key.
        parts: texts, bytes, integers and dates.

    Raises:
        MissingKeyError: a part is None.
        ConfigurationError: a part is of another type.
    """
    digest = _prefix(consumer).copy()
    for part in parts:
        digest.update(_netstring(_encoded(part)))
    return digest.digest()[:HASH_BYTES]


def with_hash(df: DataFrame, consumer: str, key: Sequence[str]) -> DataFrame:
    """The frame with the hash of each row's key in `HASH_COLUMN`, computed in the JVM. A null key fails the job.

    Raises:
        ConfigurationError: no such column, or one whose values have several texts, such as a float.
    """
    from pyspark.sql import functions as F

    types = dict(df.dtypes)
    for name in key:
        if name not in types:
            raise ConfigurationError(f"no column {name!r} for the key; there are {', '.join(types)}")
        if types[name] not in _JVM_TYPES:
            raise ConfigurationError(
                f"column {name!r} is of type {types[name]}, which has more than one text for the same value: "
                "cast it to string first, in the form that you want to compare"
            )
    if not key:
        raise ConfigurationError("a key has at least one column")

    def netstring(name: str) -> Column:
        # A cast keeps a text's bytes. `encode` would decode them first, and map all invalid UTF-8 to one text.
        data = F.col(quoted(name))
        if types[name] != "binary":
            data = data.cast("string").cast("binary")
        return F.concat(F.octet_length(data).cast("string").cast("binary"), F.lit(bytearray(b":")), data)

    head = F.lit(bytearray(_netstring(consumer.encode())))
    whole = F.concat(head, *(netstring(name) for name in key))
    hashed = F.unhex(F.substring(F.sha2(whole, 256), 1, 2 * HASH_BYTES))
    null_key = F.raise_error(F.lit(f"null key: a row has no value in one of {', '.join(key)}"))
    return df.withColumn(HASH_COLUMN, F.coalesce(hashed, null_key.cast("binary")))


def names_of(key: str | Sequence[str]) -> list[str]:
    """Column names as a list; a single name may be given as plain text."""
    return [key] if isinstance(key, str) else list(key)


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


def _encoded(part: Any) -> bytes:
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, (bytes, bytearray)):
        return bytes(part)
    if isinstance(part, int) and not isinstance(part, bool):
        return str(part).encode()
    if type(part) is dt.date:
        return part.isoformat().encode()
    if part is None:
        raise MissingKeyError("null key: a row has no value in a part of its key")
    raise ConfigurationError(
        f"a key is made of texts, bytes, integers and dates, not of {type(part).__name__}: "
        "turn it into the text that you want to compare"
    )
