"""What `idempotent doctor` says of a Redis server, or of each primary of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from idempotent.admin import Finding, Level
from idempotent.stores.redis.client import Client, location, open_client, redis
from idempotent.stores.redis.faults import REDIS_ERRORS, as_store_error

# The scripts use SET with PXAT: https://redis.io/docs/latest/commands/set/ (6.2).
_OLDEST: Final = (6, 2)
_NO_EVICTION: Final = "noeviction"
# Of maxmemory.
_FULL: Final = 0.8


def redis_findings(client_or_url: Client | str) -> list[Finding]:
    """Check whether the settings of the server, or of each primary of a cluster, let a checker keep its promise.

    Args:
        client_or_url: as for `RedisChecker`.

    Raises:
        ConfigurationError: the argument is neither a client nor a Redis URL.
        StoreError: a server did not answer.
    """
    client = open_client(client_or_url)
    try:
        return [finding for where, node in _nodes(client) for finding in _look(where, node)]
    except REDIS_ERRORS as error:
        raise as_store_error(error, location(client)) from error
    finally:
        if isinstance(client_or_url, str):
            client.close()


def _nodes(client: Client) -> Iterator[tuple[str, redis.Redis]]:
    if not isinstance(client, redis.RedisCluster):
        yield "", client
        return
    cluster: Any = client  # redis-py leaves these untyped
    for node in cluster.get_primaries():
        yield f"{node.name}: ", cluster.get_redis_connection(node)


def _look(where: str, client: redis.Redis) -> Iterator[Finding]:
    info: dict[str, Any] = dict(client.info())
    for finding in (
        _version(info),
        _role(info),
        *_memory(info, _setting(client, "maxmemory-policy")),
        _persistence(info, _setting(client, "appendfsync")),
        _replication(info, _setting(client, "min-replicas-to-write")),
    ):
        if finding:
            yield Finding(finding.level, where + finding.what, finding.hint)


def _setting(client: redis.Redis, name: str) -> str | None:
    """A setting; None if the server refuses to show it, as many hosted ones do."""
    try:
        settings: Any = client.config_get(name)
    except redis.exceptions.ResponseError:
        return None
    value = settings.get(name)
    return None if value is None else str(value)


def _version(info: Mapping[str, Any]) -> Finding:
    version = str(info.get("redis_version", "unknown"))
    try:
        known = tuple(int(part) for part in version.split(".")[:2])
    except ValueError:
        return Finding(
            Level.WARNING, f"the server does not say its version: {version}", "Redis 6.2 or later is needed"
        )
    if known < _OLDEST:
        return Finding(
            Level.ERROR, f"the server is Redis {version}", "the scripts need 6.2 or later: upgrade it"
        )
    return Finding(Level.OK, f"the server answers: Redis {version}")


def _role(info: Mapping[str, Any]) -> Finding | None:
    if info.get("role") != "slave":
        return None
    primary = f"{info.get('master_host')}:{info.get('master_port')}"
    return Finding(
        Level.ERROR, "the server is a replica, and refuses to write", f"connect to its primary, {primary}"
    )


def _memory(info: Mapping[str, Any], configured: str | None) -> Iterator[Finding]:
    policy = str(info.get("maxmemory_policy") or configured or "unknown")
    limit, used = int(info.get("maxmemory") or 0), int(info.get("used_memory") or 0)
    if policy == "unknown":
        yield Finding(
            Level.WARNING, "the server does not say its maxmemory-policy", f"it must be {_NO_EVICTION}"
        )
    elif policy != _NO_EVICTION:
        # Without a limit nothing is evicted yet; a limit set later would evict keys without a warning.
        yield Finding(
            Level.ERROR if limit else Level.WARNING,
            f"maxmemory-policy is {policy}: a full server forgets keys, and their effects happen again",
            f"CONFIG SET maxmemory-policy {_NO_EVICTION}, or a server of its own for the checker",
        )
    else:
        yield Finding(Level.OK, "no key is evicted")
    if not limit:
        yield Finding(
            Level.WARNING,
            "maxmemory is not set: the keys may grow until the operating system kills the server",
            "set maxmemory; with noeviction a full server refuses claims, and messages wait",
        )
    elif used > _FULL * limit:
        yield Finding(
            Level.WARNING,
            f"{used:,} of {limit:,} bytes are used: a full server refuses claims",
            "raise maxmemory, or lower retention_s",
        )


def _persistence(info: Mapping[str, Any], fsync: str | None) -> Finding:
    if not int(info.get("aof_enabled") or 0):
        return Finding(
            Level.WARNING,
            "the append-only file is off: a restart forgets keys, all or those since the last snapshot",
            "CONFIG SET appendonly yes, appendfsync everysec or always",
        )
    if fsync == "always":
        return Finding(Level.OK, "every write is on disk before it is acknowledged")
    if fsync is None:
        return Finding(Level.OK, "the append-only file is on; the server does not show how often it syncs")
    lost = "the last second" if fsync == "everysec" else "about the last 30 seconds"
    return Finding(
        Level.WARNING,
        f"appendfsync is {fsync}: a crash of the server's machine forgets the keys of {lost}",
        "set it to always if no effect may repeat after such a crash",
    )


def _replication(info: Mapping[str, Any], minimum: str | None) -> Finding | None:
    if not int(info.get("connected_slaves") or 0):
        return None
    if minimum not in (None, "0"):
        return None
    return Finding(
        Level.WARNING,
        "the server answers before its replicas have the write: a failover forgets the last keys",
        "set min-replicas-to-write to limit how many; Redis cannot exclude it",
    )
