"""Redis: everything is in memory, so there is one case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from redis import Redis

from idempotent.checkers import RedisChecker
from tests.bench import servers
from tests.bench.growth.claiming import for_seconds, rate
from tests.bench.growth.results import Latency, Layout, Point

_CHUNK: Final = 20_000
# As long as a real value: what stands before the text, and the text.
_LOAD: Final = """
local head = string.rep('x', 55)
for number = ARGV[1], ARGV[2] do
  local hash = redis.sha1hex('stored-' .. number)
  local bucket = string.format('%02x', math.floor(tonumber(hash:sub(1, 2), 16) / 4))
  redis.call('SET', 'idempotent:{' .. bucket .. '}:' .. hash, head .. 'growth:stored:order-' .. number,
    'PX', 1209600000)
end
"""


def points(
    sizes: Sequence[int], *, batches: Sequence[int], seconds: float, on_step: Callable[[str], object]
) -> Iterator[Point]:
    """Measure at each size, from the smallest to the largest."""
    server = servers.redis()
    try:
        server.start()
        client: Any = Redis.from_url(server.url)
        empty, stored = _used(client), 0
        for size in sorted(sizes):
            for first in range(stored + 1, size + 1, _CHUNK):
                last = min(first + _CHUNK - 1, size)
                client.eval(_LOAD, 0, first, last)
                on_step(f"Redis: {last:,} keys loaded")
            stored = size
            per_key = round((_used(client) - empty) / size, 1)
            for batch in batches:
                on_step(f"Redis, {stored:,} keys: batch {batch}")
                # Gone soon after, so that the next measurement begins with as many keys as this one did.
                checker = RedisChecker(server.url, retention_s=1.0, lease_s=1.0)
                times = for_seconds(checker, batch, seconds)
                checker.close()
                speed = rate(times, batch)
                yield Point("Redis", Layout.STRINGS, "all", stored, batch, speed, Latency.of(times), per_key)
    finally:
        server.close()


def _used(client: Any) -> int:
    return int(client.info("memory")["used_memory"])
