"""Translate errors of redis-py into StoreErrors. Only this module does so."""

from __future__ import annotations

from typing import Final

from idempotent.errors import StoreBusyError, StoreError, StoreUnavailableError
from idempotent.stores.redis.client import redis

_errors = redis.exceptions

REDIS_ERRORS: Final = (_errors.RedisError, _errors.RedisClusterException, OSError)
"""All exceptions with which a client reports an error of the server or the network."""
LOST: Final = (_errors.ConnectionError, _errors.TimeoutError, OSError)
"""The answer is missing: the server may or may not have executed the command."""

# The commands that the scripts and the client use, as ACL rules.
COMMANDS: Final = (
    "+evalsha +eval +select +time +get +set +getrange +setrange +exists +del +persist +pexpireat"
)
# The first word of an error answer. redis-py has no class for some, and Redis 6 wraps errors of a script in ERR.
_BUSY: Final = {
    "BUSY": "a script has been running for too long",
    "LOADING": "it is still loading its data",
    "CLUSTERDOWN": "the cluster is down",
    "TRYAGAIN": "the slot is moving to another node",
    "READONLY": "it is a replica: connect to the primary, or wait for the failover to end",
    "MASTERDOWN": "the replica has lost its primary",
    "NOREPLICAS": "too few replicas are connected for its min-replicas-to-write",
}
# A new connection may reach another server, or log in again.
_ELSEWHERE: Final = frozenset({"LOADING", "CLUSTERDOWN", "READONLY", "MASTERDOWN", "NOREPLICAS"})
# redis-py 5 has no exception class for CROSSSLOT outside a cluster client.
_OTHER_NODE: Final = (_errors.MovedError, _errors.AskError, _errors.ClusterCrossSlotError)
_BUSY_CLASSES: Final = {
    _errors.BusyLoadingError: "LOADING",
    _errors.ClusterDownError: "CLUSTERDOWN",
    _errors.TryAgainError: "TRYAGAIN",
    _errors.ReadOnlyError: "READONLY",
}


def as_store_error(error: BaseException, where: str) -> StoreError:
    """The error to raise: it names the store, what happened, and what to do. Raise it `from` the original.

    Args:
        error: the exception from redis-py.
        where: the server, as returned by `location`.
    """
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    busy = _busy(error, text)
    if busy:
        return StoreBusyError(f"Redis {where} is busy, {_BUSY[busy]}: {text}. Try again.")
    if isinstance(error, (_errors.AuthenticationError, _errors.AuthorizationError)):
        return StoreUnavailableError(
            f"Redis {where} refused the login: {text}. Check the user and the password."
        )
    if isinstance(error, _OTHER_NODE) or text.startswith("CROSSSLOT"):
        return StoreError(
            f"Redis {where} is a node of a cluster: {text}. Pass redis.RedisCluster to the checker."
        )
    if isinstance(error, _errors.NoPermissionError):
        return StoreError(
            f"Redis {where} denied permission: {text}. Give the user access to the keys under the checker's prefix, "
            f"and {COMMANDS}"
        )
    if isinstance(error, _errors.OutOfMemoryError) or "OOM" in text:
        return StoreError(
            f"Redis {where} is out of memory: {text}. Raise maxmemory, or shorten the retention of keys."
        )
    if isinstance(error, (*LOST, _errors.RedisClusterException)):
        return StoreUnavailableError(
            f"cannot use Redis {where}: {text}. Check that the server runs, the host, port and database."
        )
    return StoreError(f"Redis {where} failed: {text}")


def closes(error: BaseException) -> bool:
    """Whether connections are to be closed after an error: the server behind them may not be the primary any more."""
    if isinstance(error, (_errors.AuthenticationError, _errors.AuthorizationError)):
        return True
    return _busy(error, str(error)) in _ELSEWHERE


def _busy(error: BaseException, text: str) -> str | None:
    for kind, word in _BUSY_CLASSES.items():
        if isinstance(error, kind):
            return word
    if not isinstance(error, _errors.ResponseError):
        return None
    return next((word for word in _BUSY if text.startswith(f"{word} ") or f" -{word} " in text), None)
