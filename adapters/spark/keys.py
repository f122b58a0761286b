"""Key hashes: the same 20 bytes for the same key, whether Spark's JVM computes them or Python does."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from idempotent.adapters.spark.columns import HASH_COLUMN, quoted
from idempotent.adapters.spark.ledger.claims import HASH_BYTES
from idempotent.errors import ConfigurationError, MissingKeyError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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
