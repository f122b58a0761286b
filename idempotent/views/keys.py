"""Keys as rows: for machines, and in words for people."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

from idempotent.admin import KeyRecord, KeyStats
from idempotent.claims import KeyStatus

_SECOND: Final = 1_000_000


class Status(Enum):
    """The states that people distinguish."""

    IN_PROGRESS = "in_progress"
    DONE = "done"
    DEAD = "dead"

    @property
    def stored(self) -> frozenset[KeyStatus]:
        """The states that stores distinguish."""
        return frozenset(status for status in KeyStatus if status_word(status) == self.value)


def status_word(status: KeyStatus) -> str:
    """The state in one word."""
    return "in_progress" if status.in_progress else status.name.lower()


def as_json(record: KeyRecord) -> dict[str, Any]:
    """A record for machines: times in ISO 8601, the hash in hex, the result as JSON."""
    return {
        "key": record.text,
        "hash": record.hash.hex(),
        "status": status_word(record.status),
        "lapsed": record.lapsed,
        "held": record.held,
        "fence": record.fence,
        "attempts": record.attempts,
        "deaths": record.deaths + record.lapsed,
        "last_error": record.last_error,
        "updated_at": moment(record.update_at_us),
        "lease_until": None if record.lease_until_us is None else moment(record.lease_until_us),
        "expires_at": None if record.expires_at_us is None else moment(record.expires_at_us),
        "result": None if record.result is None else _loaded(record.result),
    }


def as_row(record: KeyRecord) -> dict[str, Any]:
    """A record as a row of a list for people: times are counted from now."""
    return {
        "key": record.text,
        "status": status_word(record.status),
        "attempts": record.attempts or "",
        "updated": since(record.update_at_us, record.now_us),
        "lease": _lease(record),
        "expires": "never" if record.expires_at_us is None else since(record.expires_at_us, record.now_us),
        "last_error": record.last_error or "",
    }


def in_full(record: KeyRecord) -> dict[str, Any]:
    """Everything known about a key, for people."""
    parks = record.status is KeyStatus.IN_PROGRESS_PARK
    values = as_json(record)
    values["status"] += " (parked when it lapses)" if parks else ""
    values["lease"] = _lease(record)
    values["expires_at"] = values["expires_at"] or "never"
    if not isinstance(values["result"], str | None):
        values["result"] = json.dumps(values["result"], ensure_ascii=False)  # not 20,261,130
    return values


def stats_json(stats: KeyStats) -> dict[str, Any]:
    """A count for machines."""
    return {
        "consumer": stats.consumer,
        "status": status_word(stats.status),
        "parks": stats.status is KeyStatus.IN_PROGRESS_PARK,
        "count": stats.count,
        "lapsed": stats.lapsed,
        "oldest_update": moment(stats.oldest_update_us),
    }


def numbers(counted: Iterable[KeyStats], consumer: str | None = None) -> dict[str, int]:
    """How many keys are `dead`, `in_progress`, and `lapsed`, in progress with a lease that has ended.

    Args:
        counted: what a store has.
        consumer: of this one; None: of all.
    """
    mine = [each for each in counted if consumer in (None, each.consumer)]
    return {
        "dead": sum(each.count for each in mine if each.status is KeyStatus.DEAD),
        "in_progress": sum(each.count for each in mine if each.status.in_progress),
        "lapsed": sum(each.lapsed for each in mine),
    }


def moment(microseconds: int) -> str:
    """A time of the store in ISO 8601, UTC."""
    try:
        return datetime.fromtimestamp(microseconds // _SECOND, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return "never"  # a retention of thousands of years


def span(microseconds: int) -> str:
    """A duration, rounded in its largest unit."""
    seconds = abs(microseconds) // _SECOND
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{round(seconds / size)} {unit}"
    return f"{seconds} s"


def since(time_us: int, now_us: int) -> str:
    """A time in words: how far from now."""
    rest = time_us - now_us
    return f"in {span(rest)}" if rest > 0 else f"{span(rest)} ago"


def _lease(record: KeyRecord) -> str:
    """The rest of the lease, in words."""
    if not record.status.in_progress:
        return ""
    if record.lease_until_us is None:
        return "none"
    when = since(record.lease_until_us, record.now_us)
    if record.held:
        return f"retry {when}"
    return f"lapsed {when}" if record.lapsed else f"ends {when}"


def _loaded(result: bytes) -> Any:
    try:
        return json.loads(result)
    except (ValueError, RecursionError):
        return result.decode("utf-8", "backslashreplace")
