"""The one place where an error of redis-py becomes one of ours."""

from __future__ import annotations

from typing import Final

from idempotent.errors import StoreBusyError, StoreError, StoreUnavailableError
from idempotent.stores.redis.client import redis

_errors = redis.exceptions

REDIS_ERRORS: Final = (_errors.RedisError, _errors.RedisClusterException, OSError)
"""Everything a client raises for the server's or the network's sake."""
LOST: Final = (_errors.ConnectionError, _errors.TimeoutError, OSError)
"""No answer: the command may have been carried out or not."""

# What the scripts and the client call.
COMMANDS: Final = (
    "+evalsha +eval +select +time +get +set +getrange +setrange +exists +del +persist +pexpireat"
)
# First words of an answer; redis-py has no class for some, and Redis 6 wraps those of a script in ERR.
_BUSY: Final = {
    "BUSY": "a script runs for too long",
    "LOADING": "it still loads its data",
    "CLUSTERDOWN": "the cluster is down",
    "TRYAGAIN": "the slot moves to another node",
    "READONLY": "it is a replica: connect to the primary, or wait for the failover to end",
    "MASTERDOWN": "the replica has lost its primary",
    "NOREPLICAS": "too few replicas are connected for its min-replicas-to-write",
}
# redis-py 5 has no class of its own for CROSSSLOT outside a cluster client.
_OTHER_NODE: Final = (_errors.MovedError, _errors.AskError, _errors.ClusterCrossSlotError)
_BUSY_CLASSES: Final = {
    _errors.BusyLoadingError: "LOADING",
    _errors.ClusterDownError: "CLUSTERDOWN",
    _errors.TryAgainError: "TRYAGAIN",
    _errors.ReadOnlyError: "READONLY",
}


def as_store_error(error: BaseException, where: str) -> StoreError:
    """The error to raise, saying which store, what happened, and what to do. Raise it `from` the original.

    Args:
        error: what redis-py raised.
        where: the server, as `location` says it.
    """
    said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    busy = _busy(error, said)
    if busy:
        return StoreBusyError(f"Redis {where} is busy, {_BUSY[busy]}: {said}. Try again.")
    if isinstance(error, (_errors.AuthenticationError, _errors.AuthorizationError)):
        return StoreUnavailableError(
            f"Redis {where} refused the login: {said}. Check the user and the password."
        )
    if isinstance(error, _OTHER_NODE) or said.startswith("CROSSSLOT"):
        return StoreError(
            f"Redis {where} is a node of a cluster: {said}. Pass redis.RedisCluster to the checker."
        )
    if isinstance(error, _errors.NoPermissionError):
        return StoreError(
            f"Redis {where} does not permit it: {said}. The user needs the keys under the checker's prefix, "
            f"and {COMMANDS}"
        )
    if isinstance(error, _errors.OutOfMemoryError) or "OOM" in said:
        return StoreError(f"Redis {where} is out of memory: {said}. Raise maxmemory, or keep keys shorter.")
    if isinstance(error, (*LOST, _errors.RedisClusterException)):
        return StoreUnavailableError(
            f"cannot use Redis {where}: {said}. Check that the server runs, the host, port and database."
        )
    return StoreError(f"Redis {where} failed: {said}")


def _busy(error: BaseException, said: str) -> str | None:
    for kind, word in _BUSY_CLASSES.items():
        if isinstance(error, kind):
            return word
    if not isinstance(error, _errors.ResponseError):
        return None
    return next((word for word in _BUSY if said.startswith(f"{word} ") or f" -{word} " in said), None)
