"""One of a Redis server's numbered databases for each process of pytest-xdist."""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit


@contextmanager
def own_redis_database(server_url: str, worker: str) -> Iterator[str]:
    """Counts on from the database `server_url` names, and flushes it at the end.

    Raises RuntimeError when it holds keys: they are somebody's, and the end would delete them.
    """
    from redis import Redis

    url = numbered(server_url, worker)
    with Redis.from_url(url) as client:
        if client.dbsize() != 0:
            raise RuntimeError(f"database {urlsplit(url).path[1:]} of the test Redis is not empty")
        try:
            yield url
        finally:
            client.flushdb()


def numbered(server_url: str, worker: str) -> str:
    """`redis://host/2` is `redis://host/5` for worker gw3."""
    parts = urlsplit(server_url)
    first = int(parts.path.strip("/") or 0)
    return urlunsplit(parts._replace(path=f"/{first + int(worker.removeprefix('gw'))}"))
