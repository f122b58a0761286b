"""DirectConnections: send commands without the overhead of the client's pool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

try:
    import hiredis
except ImportError:
    hiredis = None  # type: ignore[assignment]

from idempotent.stores.idle import Idle
from idempotent.stores.redis.client import Client, redis, retries_itself
from idempotent.stores.redis.faults import closes

Command: TypeAlias = "tuple[str | bytes | int, ...]"

# Called directly: redis-py inspects each argument again before it calls this.
_pack: Final = getattr(hiredis, "pack_command", None)
_SERVER_ERROR: Final = redis.exceptions.ResponseError
# A credential provider may change the password of the pool's open connections, but cannot reach these.
_POOL_ONLY: Final = ("credential_provider",)


class DirectConnections:
    """Connections with the settings of the client's pool, but outside it.

    redis-py checks a connection out of its pool, tests it, times the command and looks up the parser for its answer:
    together that takes as long as the command itself.

    Args:
        client: the client whose settings are used.
    """

    def __init__(self, client: redis.Redis) -> None:
        """Read the settings. The first command connects."""
        self._pool = client.connection_pool
        self._idle: Idle[Any] = Idle()
        self._retry = client.get_retry() if retries_itself(client) else None

    @classmethod
    def of(cls, client: Client) -> DirectConnections | None:
        """The connections of a client, or None when the client's class or pool customises how commands are sent."""
        if type(client) is not redis.Redis or client.connection is not None:
            return None
        pool = client.connection_pool
        if type(pool) not in (redis.ConnectionPool, redis.BlockingConnectionPool):
            return None
        if getattr(pool, "cache", None) or any(pool.connection_kwargs.get(name) for name in _POOL_ONLY):
            return None
        return cls(client)

    def execute(self, *command: str | bytes | int) -> Any:
        """Send a command and wait for its answer, in bytes.

        Raises:
            RedisError: the server answered with an error, or the connection failed.
        """
        (answer,) = self.execute_all([command])
        if isinstance(answer, _SERVER_ERROR):
            raise answer
        return answer

    def execute_all(self, commands: Iterable[Command]) -> Iterator[Any]:
        """Send each command as soon as it is computed, then yield each answer as soon as it arrives.

        The server works on the next commands in both phases. An error answered by the server is yielded as an
        answer. Answers must be short, because they are read only after all commands were sent.

        Raises:
            ConnectionError, TimeoutError: the answer is missing; its result and all later ones are unknown.
        """
        connection = self._idle.take()
        if connection is None:
            connection = self._pool.connection_class(**self._pool.connection_kwargs)
        leaves = False
        try:
            if self._retry is None:
                for answer in _pipelined(connection, commands):
                    leaves = leaves or (isinstance(answer, _SERVER_ERROR) and closes(answer))
                    yield answer
            else:
                repeatable = list(commands)
                answers = self._retry.call_with_retry(
                    lambda: list(_pipelined(connection, repeatable)), lambda _: connection.disconnect()
                )
                leaves = any(isinstance(answer, _SERVER_ERROR) and closes(answer) for answer in answers)
                yield from answers
        except BaseException:
            # Unread answers may be left in it. The server may have closed the idle connections together with this one.
            connection.disconnect()
            self.close()
            raise
        if leaves:
            connection.disconnect()
            self.close()
        else:
            self._idle.put(connection)

    def close(self) -> None:
        """Close the idle connections."""
        while (connection := self._idle.take()) is not None:
            connection.disconnect()


def _pipelined(connection: Any, commands: Iterable[Command]) -> Iterator[Any]:
    waiting = 0
    for command in commands:
        connection.send_packed_command([_pack(command)] if _pack else connection.pack_command(*command))
        waiting += 1
    for _ in range(waiting):
        yield _answer(connection)


def _answer(connection: Any) -> Any:
    try:
        return connection.read_response(disable_decoding=True)
    except _SERVER_ERROR as error:
        return error
