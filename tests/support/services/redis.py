"""Redis."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from urllib.parse import urlsplit, urlunsplit

from tests.support.services.docker import Image
from tests.support.services.process import PrivateServer, free_port

PASSWORD = "idempotent"
_DATABASES = "64"


def ping(url: str) -> None:
    from redis import Redis

    with Redis.from_url(url) as client:
        client.ping()


class PrivateRedis(PrivateServer):
    """Keeps nothing over a stop, unless started with `"--appendonly", "yes", "--appendfsync", "always"`."""

    name = "Redis"
    debian_package = "redis-server"
    programs = ("redis-server",)
    ping = staticmethod(ping)

    @property
    def url(self) -> str:
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"

    @cached_property
    def _bus_port(self) -> int:
        return free_port()

    def _prepare(self) -> None:
        """Redis makes its files by itself."""

    def _command(self) -> list[str]:
        return [
            "redis-server",
            *("--port", str(self.port)),
            # As a node of a cluster it listens at a second one: else 10,000 above, where somebody else may be.
            *("--cluster-port", str(self._bus_port)),
            *("--bind", "127.0.0.1"),
            *("--dir", str(self.folder)),
            *("--requirepass", PASSWORD),
            *("--databases", _DATABASES),
            *("--save", ""),
            *("--appendonly", "no"),
        ]


IMAGE = Image(
    "redis:7",
    port=6379,
    command=f"redis-server --requirepass {PASSWORD} --databases {_DATABASES} --save ''",
    url=f"redis://:{PASSWORD}@{{host}}:{{port}}/0",
)


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
