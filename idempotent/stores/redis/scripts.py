"""RedisStore: runs the Lua scripts on connections of its own, and handles lost answers and flushed scripts."""

from __future__ import annotations

import hashlib
from binascii import hexlify
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice, repeat
from typing import Any, Final, TypeAlias

try:
    import hiredis
except ImportError:
    hiredis = None  # type: ignore[assignment]

from idempotent.errors import StoreError, StoreUnavailableError
from idempotent.keys import HASH_BYTES
from idempotent.stores.idle import Idle
from idempotent.stores.redis.client import (
    Client,
    close_idle,
    decodes,
    is_cluster,
    location,
    redis,
    retries_itself,
)
from idempotent.stores.redis.faults import LOST, REDIS_ERRORS, as_store_error, closes

# A running script blocks all other clients; this many keys take a few milliseconds.
MAX_KEYS: Final = 1000
# Large enough to make a call efficient, and small enough that the server starts early.
_STREAM_KEYS: Final = 125
BUCKETS: Final = 64
_BUCKET_SHIFT: Final = 2  # the first 6 bits of the hash
_NO_SCRIPT = redis.exceptions.NoScriptError
# Called directly: redis-py inspects each argument again before it calls this.
_pack: Final = getattr(hiredis, "pack_command", None)
_SERVER_ERROR: Final = redis.exceptions.ResponseError
# A credential provider may change the password of the pool's open connections, but cannot reach these.
_POOL_ONLY: Final = ("credential_provider",)

Command: TypeAlias = "tuple[str | bytes | int, ...]"


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


def _executing(client: Client) -> Callable[..., Any]:
    """The client's own method to send a command, with the answer in bytes."""
    if decodes(client):
        return partial(client.execute_command, **{redis.client.NEVER_DECODE: True})
    execute: Callable[..., Any] = client.execute_command
    return execute


def _each(answer: Any, count: int) -> Iterable[Any]:
    """The answer for each key: a script whose answer is the same number for all keys returns it once."""
    return answer if type(answer) is list else repeat(answer, count)


class Lua:
    """A Lua script, and the hash by which the server caches it.

    Args:
        text: the source of the script.
    """

    __slots__ = ("sha", "source")

    def __init__(self, text: str) -> None:
        """Hash it once."""
        self.source: Final = text.encode()
        self.sha: Final = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()


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


class RedisStore:
    """A client, and the names of the library's keys in its database.

    Args:
        client: a synchronous client. Its pool is thread-safe, and detects a fork.
        prefix: the prefix of all names.
    """

    def __init__(self, client: Client, prefix: str) -> None:
        """Keep the client. The first command connects."""
        self.client: Final = client
        self.names: Final = KeyNames(prefix)
        self.where: Final = location(client)
        self._cluster = is_cluster(client)
        self._client_retries = retries_itself(client)
        self._direct = DirectConnections.of(client)
        self._execute = self._direct.execute if self._direct else _executing(client)

    def run(self, script: Lua, names: Sequence[bytes], arguments: Sequence[bytes | int]) -> Any:
        """Run a script over keys of one slot.

        When the answer is lost, the script is sent again, once, unless the client itself retries. Every script may run
        twice: the second run returns the first answer, or reports that the owner no longer holds the key.

        Raises:
            StoreError: the server answered with an error, or did not answer.
        """
        try:
            return self._execute("EVALSHA", script.sha, len(names), *names, *arguments)
        except _NO_SCRIPT:
            return self._run_by_source(script, names, arguments)
        except LOST as error:
            if self._client_retries:
                raise self._failed(error) from error
            return self._run_again(error, script, names, arguments)
        except REDIS_ERRORS as error:
            raise self._failed(error) from error

    def run_one(self, script: Lua, name: bytes, body: bytes) -> Any:
        """Run a script over one key, and return its answer.

        Raises:
            StoreError: the server answered with an error, or did not answer.
        """
        (answer,) = _each(self.run(script, (name,), (body,)), 1)
        return answer

    def run_many(self, script: Lua, names: Iterable[bytes], bodies: Iterable[bytes]) -> Iterator[Any]:
        """Run a script over any keys, with one argument each. Yields answers in key order, each when it arrives.

        The first command is sent when the first answer is requested.

        Raises:
            StoreError: the server answered with an error, or did not answer, for at least one key.
        """
        if self._direct is not None:
            return self._run_streamed(self._direct, script, names, bodies)
        return iter(self._run_parts(script, list(names), list(bodies)))

    def _run_parts(self, script: Lua, names: list[bytes], bodies: list[bytes]) -> list[Any]:
        if not self._cluster and len(names) <= MAX_KEYS:
            return list(_each(self.run(script, names, bodies), len(names)))
        answers: list[Any] = [None] * len(names)
        failed: StoreError | None = None
        for positions in self.together(names):
            try:
                part = self.run(script, [names[at] for at in positions], [bodies[at] for at in positions])
            except StoreError as error:
                failed = error  # continue: the leases on the other nodes still need their renewal
                continue
            for at, answer in zip(positions, _each(part, len(positions)), strict=True):
                answers[at] = answer
        if failed is not None:
            raise failed
        return answers

    def _run_streamed(
        self, direct: DirectConnections, script: Lua, names: Iterable[bytes], bodies: Iterable[bytes]
    ) -> Iterator[Any]:
        """Send and read in parts, so that the server and the client work at the same time."""
        waiting: deque[tuple[list[bytes], list[bytes]]] = deque()
        more_names, more_bodies = iter(names), iter(bodies)

        def commands() -> Iterator[Command]:
            while some := list(islice(more_names, _STREAM_KEYS)):
                theirs = list(islice(more_bodies, len(some)))
                waiting.append((some, theirs))
                yield ("EVALSHA", script.sha, len(some), *some, *theirs)

        parts = direct.execute_all(commands())
        try:
            for part in parts:
                some, theirs = waiting.popleft()
                if isinstance(part, _NO_SCRIPT):
                    yield from _each(self._run_by_source(script, some, theirs), len(some))
                elif isinstance(part, Exception):
                    for _ in parts:
                        pass  # read all answers, so that the connection can be used again
                    raise self._failed(part) from part
                else:
                    yield from _each(part, len(some))
        except LOST as error:
            if self._client_retries:
                raise self._failed(error) from error
            for _ in commands():
                pass  # adds the parts that were not sent to `waiting`
            for some, theirs in waiting:
                yield from _each(self._run_again(error, script, some, theirs), len(some))

    def together(self, names: Sequence[bytes]) -> list[list[int]]:
        """The positions of the names that go into each call: at most MAX_KEYS, and in a cluster of one bucket."""
        groups: dict[bytes, list[int]] = {}
        prefix_bytes = len(self.names.prefix)
        for at, name in enumerate(names):
            groups.setdefault(bucket_of(name, prefix_bytes) if self._cluster else b"", []).append(at)
        return [
            group[start : start + MAX_KEYS]
            for group in groups.values()
            for start in range(0, len(group), MAX_KEYS)
        ]

    def close(self) -> None:
        """Close the store's own connections. The client stays open."""
        if self._direct:
            self._direct.close()

    @contextmanager
    def edge(self) -> Iterator[None]:
        """Translate exceptions from the client into a StoreError."""
        try:
            yield
        except REDIS_ERRORS as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> StoreError:
        if closes(error):
            close_idle(self.client)
        return as_store_error(error, self.where)

    def _run_again(
        self, lost: Exception, script: Lua, names: Sequence[bytes], arguments: Sequence[bytes | int]
    ) -> Any:
        """Run a script whose answer was lost. The answer stays lost, whatever else the server says now."""
        try:
            return self._run_by_source(script, names, arguments)
        except StoreUnavailableError:
            raise
        except StoreError as error:
            raise self._failed(lost) from error

    def _run_by_source(self, script: Lua, names: Sequence[bytes], arguments: Sequence[bytes | int]) -> Any:
        with self.edge():
            # EVAL also loads the script. Between SCRIPT LOAD and EVALSHA it could be flushed again.
            return self._execute("EVAL", script.source, len(names), *names, *arguments)
