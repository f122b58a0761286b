"""DirectConnections: commands without the client around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

try:
    import hiredis
except ImportError:
    hiredis = None  # type: ignore[assignment]

from idempotent.stores.idle import Idle
from idempotent.stores.redis.client import Client, redis, retries_itself

Command: TypeAlias = "tuple[str | bytes | int, ...]"

# redis-py looks at each argument once more before it calls this.
_pack: Final = getattr(hiredis, "pack_command", None)
_OWN_ANSWER: Final = redis.exceptions.ResponseError
# A credential provider may change the password of a pool's open connections; of ours it knows nothing.
_ONLY_OF_THE_POOL: Final = ("credential_provider",)


class DirectConnections:
    """Connections made as the client's pool makes them, and not of it.

    Checking one out of redis-py's pool, looking whether it still is connected, timing the command and finding the
    parser for its answer take as long as the command itself.

    Args:
        client: whose server.
    """

    def __init__(self, client: redis.Redis) -> None:
        """Connect to nothing yet."""
        self._pool = client.connection_pool
        self._idle: Idle[Any] = Idle()
        self._retry = client.get_retry() if retries_itself(client) else None

    @classmethod
    def of(cls, client: Client) -> DirectConnections | None:
        """Those of a client, or None where they would leave something out: one with ways of its own keeps them."""
        if type(client) is not redis.Redis or client.connection is not None:
            return None
        pool = client.connection_pool
        if type(pool) not in (redis.ConnectionPool, redis.BlockingConnectionPool):
            return None
        if getattr(pool, "cache", None) or any(
            pool.connection_kwargs.get(name) for name in _ONLY_OF_THE_POOL
        ):
            return None
        return cls(client)

    def execute(self, *command: str | bytes | int) -> Any:
        """Send a command and wait for its answer, in bytes.

        Raises:
            RedisError: what the server or the network had to say.
        """
        (answer,) = self.execute_all([command])
        if isinstance(answer, _OWN_ANSWER):
            raise answer
        return answer

    def execute_all(self, commands: Iterable[Command]) -> Iterator[Any]:
        """Send commands, each as soon as it is made, and then hand over the answers, each as soon as it comes.

        Either way the server works on the next ones meanwhile. An error that the server answers is among the
        answers. They must be short, because nobody reads them while there is something to send.

        Raises:
            ConnectionError, TimeoutError: this answer is missing, and nothing is known of it or those after it.
        """
        connection = self._idle.take()
        if connection is None:
            connection = self._pool.connection_class(**self._pool.connection_kwargs)
        try:
            if self._retry is None:
                yield from _asked(connection, commands)
            else:
                again = list(commands)
                yield from self._retry.call_with_retry(
                    lambda: list(_asked(connection, again)), lambda _: connection.disconnect()
                )
        except BaseException:
            # Answers are left in it, or half of one. The server may have closed the idle ones with this one.
            connection.disconnect()
            self.close()
            raise
        self._idle.put(connection)

    def close(self) -> None:
        """Close what is idle."""
        while (connection := self._idle.take()) is not None:
            connection.disconnect()


def _asked(connection: Any, commands: Iterable[Command]) -> Iterator[Any]:
    waiting = 0
    for command in commands:
        connection.send_packed_command([_pack(command)] if _pack else connection.pack_command(*command))
        waiting += 1
    for _ in range(waiting):
        yield _answer(connection)


def _answer(connection: Any) -> Any:
    try:
        return connection.read_response(disable_decoding=True)
    except _OWN_ANSWER as error:
        return error
