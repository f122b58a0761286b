"""Make stored keys older, so that leases lapse and keys expire without waiting."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from redis import Redis

from idempotent.schema import dedup_tables

_MICROSECONDS: Final = 1_000_000
# A key's lease_until is at byte 9, its expires_at at byte 25 (idempotent/checkers/redis/layout.py). A failure, named
# `...:f`, has neither. PTTL is negative for a key that Redis never forgets.
_AGE_KEY: Final = """
local function earlier(from)
  local at = struct.unpack('>I8', redis.call('GETRANGE', KEYS[1], from, from + 7))
  if at > 0 then
    redis.call('SETRANGE', KEYS[1], from, struct.pack('>I8', at - ARGV[1] * 1000))
  end
end
if KEYS[1]:sub(-2) ~= ':f' then
  earlier(9)
  earlier(25)
end
local rest = redis.call('PTTL', KEYS[1])
if rest >= 0 then
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', rest - ARGV[1]))
end
"""


def age_tables(engine: sa.Engine, table: str, seconds: float) -> None:
    """Move lease ends, expiries and failures into the past; a lease end that is NULL stays NULL."""
    tables = dedup_tables(sa.MetaData(), table)
    microseconds = round(seconds * _MICROSECONDS)
    with engine.begin() as connection:
        for stored, names in (
            (tables.keys, ("lease_until", "expires_at")),
            (tables.failures, ("update_at", "expires_at")),
        ):
            columns = [stored.c[name] for name in names]
            connection.execute(stored.update().values({column: column - microseconds for column in columns}))


def age_keys(url: str, prefix: str, seconds: float) -> None:
    """Move lease ends, expiries and TTLs of the keys with this prefix."""
    with Redis.from_url(url) as client:
        age = client.register_script(_AGE_KEY)
        for name in client.scan_iter(match=f"{prefix}*", count=1000):
            age(keys=[name], args=[round(seconds * 1000)])
