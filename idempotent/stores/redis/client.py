"""The redis-py client behind a checker: made from a URL, or the application's own, looked at before it is used."""

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

__all__ = ["Client", "decodes", "is_cluster", "location", "open_client", "redis", "retries_itself"]

Client: TypeAlias = "redis.Redis | redis.RedisCluster"

# redis-py waits for ever by default (before 8); a handler must not. The URL may say otherwise: `?socket_timeout=30`.
_SOCKET_TIMEOUT_S: Final = 5.0
_EXAMPLE: Final = "redis://user:password@host:6379/0"


def open_client(client_or_url: object) -> Client:
    """The client itself, or a new one that connects when it is first used.

    Raises:
        ConfigurationError: a URL that cannot work, an asyncio client, or no client at all.
    """
    if isinstance(client_or_url, str):
        return _from_url(client_or_url)
    if isinstance(client_or_url, (redis.asyncio.Redis, redis.asyncio.RedisCluster)):
        raise ConfigurationError(
            "RedisChecker was given an asyncio client, and handlers are synchronous: pass redis.Redis, "
            f"redis.RedisCluster or a URL such as {_EXAMPLE}"
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
    """Whether the client turns answers into str unless told otherwise."""
    return bool(_options(client).get("decode_responses"))


def retries_itself(client: Client) -> bool:
    """Whether the client sends a command again when its answer was lost."""
    if isinstance(client, redis.RedisCluster):
        return True
    # No public accessor in redis-py 5.
    return bool(getattr(client.get_retry(), "_retries", 0))


def location(client: Client) -> str:
    """Which server it is, without the password."""
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


def _from_url(url: str) -> redis.Redis:
    try:
        client = redis.Redis.from_url(
            url,
            socket_timeout=_SOCKET_TIMEOUT_S,
            socket_connect_timeout=_SOCKET_TIMEOUT_S,
            # RedisStore sends again by itself, once and at once.
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        )
        # Connects to nothing; finds an option in the URL that redis-py does not know.
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)
    except (ValueError, TypeError) as error:
        unknown = f": {error}" if isinstance(error, TypeError) else ""
        # Not `from error`, nor its words: a ValueError may quote a part of a password with a '/' in it.
        raise ConfigurationError(
            f"not a Redis URL that redis-py understands{unknown}. Write {_EXAMPLE} (rediss:// for TLS, "
            "unix:///path for a socket); in a password, '/', '#', '?' and '@' are written %2F, %23, %3F and %40"
        ) from None
    return client
