"""The names of keys in Redis: `<prefix>{<bucket>}:<hash in hex>`.

The bucket is a hash tag: keys of one bucket share a slot of a cluster, so one script can take them together. 64 buckets
are few enough that a batch makes few calls, and enough to spread evenly over about 20 nodes.
"""

from __future__ import annotations

from binascii import hexlify
from typing import Final

from idempotent.keys import HASH_BYTES

BUCKETS: Final = 64
_BUCKET_SHIFT: Final = 2  # the first 6 bits of the hash


class KeyNames:
    """The names of keys under one prefix.

    Args:
        prefix: the prefix of all names.
    """

    __slots__ = ("_heads", "prefix")

    def __init__(self, prefix: str) -> None:
        """Compute the part before the hash once for each bucket."""
        self.prefix: Final = prefix.encode()
        self._heads = [b"%b{%02x}:" % (self.prefix, bucket) for bucket in range(BUCKETS)]

    def name(self, key_hash: bytes) -> bytes:
        """The name of the key with this hash."""
        return self._heads[key_hash[0] >> _BUCKET_SHIFT] + hexlify(key_hash)

    def hash_of(self, name: bytes) -> bytes | None:
        """The hash in a key's name; None when the name is not that of a key."""
        try:
            key_hash = bytes.fromhex(name[-2 * HASH_BYTES :].decode())
        except ValueError:
            return None
        return key_hash if len(key_hash) == HASH_BYTES and self.name(key_hash) == name else None


def bucket_of(name: bytes, prefix_bytes: int) -> bytes:
    """The bucket in a key's name. A cluster computes the slot from it."""
    return name[prefix_bytes + 1 : prefix_bytes + 3]
