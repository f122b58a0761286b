"""The redis-py client behind a checker: created from a URL, or the application's own, checked before use."""

from __future__ import annotations

from typing import Any, Final, TypeAlias, cast

from idempotent.errors import ConfigurationError, MissingExtraError

try:
    import redis
except ImportError as error:
    raise MissingExtraError("redis", "redis") from error
import redis.asyncio
import redis.backoff
import redis.client
import redis.retry

__all__ = [
    "LONGEST_ANSWER_S",
    "Client",
    "close_idle",
    "decodes",
    "is_cluster",
    "location",
    "open_client",
    "redis",
    "retries_itself",
]

Client: TypeAlias = "redis.Redis | redis.RedisCluster"

# redis-py waits forever by default (before 8); a handler must not. The URL may override it: `?socket_timeout=30`.
LONGEST_ANSWER_S: Final = 5.0
_EXAMPLE: Final = "redis://user:password@host:6379/0"


def open_client(client_or_url: object, timeout_s: float = LONGEST_ANSWER_S) -> Client:
    """Return the given client, or create one from a URL. A new client connects when it is first used.

    Args:
        client_or_url: the client, or the URL.
        timeout_s: how long a new client waits for an answer, unless the URL sets `?socket_timeout=`.

    Raises:
        ConfigurationError: the URL is invalid, the client is asyncio, or the argument is neither URL nor client.
    """
    if isinstance(client_or_url, str):
        return _from_url(client_or_url, timeout_s)
    if isinstance(client_or_url, (redis.asyncio.Redis, redis.asyncio.RedisCluster)):
        raise ConfigurationError(
            "RedisChecker was given an asyncio client. With a synchronous one it serves `async def` handlers too: "
            f"pass redis.Redis, redis.RedisCluster or a URL such as {_EXAMPLE}"
        )
    if not isinstance(client_or_url, (redis.Redis, redis.RedisCluster)) or isinstance(
        client_or_url, redis.client.Pipeline
    ):
        raise ConfigurationError(
            f"RedisChecker takes redis.Redis, redis.RedisCluster or a URL such as {_EXAMPLE}, "
            f"not {type(client_or_url).__name__}"
        )
    return client_or_url


def is_cluster(client: Client) -> bool:
    """Whether keys must be sent slot by slot."""
    return isinstance(client, redis.RedisCluster)


def decodes(client: Client) -> bool:
    """Whether the client decodes answers to str by default."""
    return bool(_options(client).get("decode_responses"))


def retries_itself(client: Client) -> bool:
    """Whether the client itself retries a command whose answer was lost."""
    if isinstance(client, redis.RedisCluster):
        return True
    # No public accessor in redis-py 5.
    return bool(getattr(client.get_retry(), "_retries", 0))


def close_idle(client: Client) -> None:
    """Close the connections in the client's pool."""
    nodes: Any = [client]
    if isinstance(client, redis.RedisCluster):
        nodes_of: Any = client.get_nodes
        nodes = [node.redis_connection for node in nodes_of() if node.redis_connection]
    for node in nodes:
        try:
            node.connection_pool.disconnect(inuse_connections=False)
        except TypeError:  # a BlockingConnectionPool of redis-py 5 also closes those in use
            node.connection_pool.disconnect()


def location(client: Client) -> str:
    """The server's address, database and user, without the password."""
    options = _options(client)
    if isinstance(client, redis.RedisCluster):
        nodes = client.nodes_manager.startup_nodes.values()
        where = "cluster " + ", ".join(sorted(f"{node.host}:{node.port}" for node in nodes))
    elif options.get("path"):
        where = f"unix://{options['path']}, database {options.get('db') or 0}"
    elif options.get("host"):
        where = f"{options['host']}:{options.get('port') or 6379}/{options.get('db') or 0}"
    else:
        where = repr(getattr(client.connection_pool, "service_name", "of the client's own pool"))
    user, password = options.get("username"), options.get("password")
    if user or password:
        where += f" as {user or 'default'}{':***' if password else ''}"
    return where


def _options(client: Client) -> dict[str, Any]:
    return cast("dict[str, Any]", client.get_connection_kwargs())


def _from_url(url: str, timeout_s: float) -> redis.Redis:
    try:
        client = redis.Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            # RedisStore retries once, immediately; the client's own retries are turned off.
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        )
        # Raises for an option in the URL that redis-py does not know, without connecting.
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)
    except (ValueError, TypeError) as error:
        unknown = f": {error}" if isinstance(error, TypeError) else ""
        # Neither `from error` nor its text: a ValueError may quote a part of a password with a '/' in it.
        raise ConfigurationError(
            f"invalid Redis URL{unknown}. Write {_EXAMPLE} (rediss:// for TLS, "
            "unix:///path for a socket); in a password write '/', '#', '?' and '@' as %2F, %23, %3F and %40"
        ) from None
    return client
