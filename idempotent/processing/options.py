"""ConsumerOptions: the options of one consumer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from idempotent.keys import Key
from idempotent.message import Message
from idempotent.policy import Backoff, ExceptionPolicy, OnExpiredLease, OnMissingKey, OnStoreError

KeyFunction: TypeAlias = Callable[[Message], "str | bytes | int | None"]
ExpiredLeasePolicy: TypeAlias = "OnExpiredLease | Callable[[Key], bool]"


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """The options of `@consumer`; `Registry.consumer` documents each."""

    key: KeyFunction | None
    exceptions: ExceptionPolicy
    max_attempts: int
    backoff: Backoff
    on_missing_key: OnMissingKey
    on_expired_lease: ExpiredLeasePolicy
    on_store_error: OnStoreError
    fingerprint: KeyFunction | None
    store_result: bool
    concurrency: int | None
