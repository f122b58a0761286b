"""Redis."""

from functools import cached_property

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
