"""Shows keys to people and to machines."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

from rich import box
from rich.table import Table

from idempotent.admin import KeyRecord, KeyStats
from idempotent.claims import KeyStatus
from idempotent.cli.terminal.output import plain, shown, table

_SECOND: Final = 1_000_000
_COLOURS: Final = {"in_progress": "yellow", "done": "green", "dead": "red"}


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


def coloured(status: KeyStatus) -> str:
    """The state in its colour."""
    word = status_word(status)
    return f"[{_COLOURS[word]}]{word}[/]"


def lease(record: KeyRecord) -> str:
    """The rest of the lease, in words."""
    if not record.status.in_progress:
        return ""
    if record.lease_until_us is None:
        return "[yellow]none[/yellow]"
    rest = span(record.lease_until_us - record.now_us)
    if record.held:
        return f"retry in {rest}" if record.lease_until_us >= record.now_us else f"retry due since {rest}"
    return f"[red]lapsed {rest} ago[/red]" if record.lapsed else f"ends in {rest}"


def expiry(record: KeyRecord) -> str:
    """When gc may delete the key, in words."""
    if record.expires_at_us is None:
        return "never"
    rest = record.expires_at_us - record.now_us
    return f"in {span(rest)}" if rest >= 0 else f"{span(rest)} ago"


def records_table() -> Table:
    """An empty table of keys."""
    return table(
        "Key", "Status", "Attempts", "Updated", "Lease", "Expires", "Last error", right=("Attempts",)
    )


def add_record(rows: Table, record: KeyRecord) -> None:
    """One key as a row."""
    rows.add_row(
        shown(record.text),
        coloured(record.status),
        str(record.attempts or ""),
        f"{span(record.now_us - record.update_at_us)} ago",
        lease(record),
        expiry(record),
        plain(record.last_error or ""),
    )


def record_table(record: KeyRecord) -> Table:
    """Everything known about one key."""
    rows = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    rows.add_column(style="bold")
    rows.add_column(overflow="fold")
    rows.add_row("Key", shown(record.text))
    rows.add_row("Hash", record.hash.hex())
    parks = record.status is KeyStatus.IN_PROGRESS_PARK
    rows.add_row("Status", coloured(record.status) + (" (parked when it lapses)" if parks else ""))
    if record.status.in_progress:
        rows.add_row("Backoff" if record.held else "Lease", lease(record))
    rows.add_row("Fence", str(record.fence))
    rows.add_row("Attempts", str(record.attempts))
    if record.deaths or record.lapsed:
        rows.add_row("Deaths", str(record.deaths + record.lapsed))
    if record.last_error:
        rows.add_row("Last error", f"[red]{plain(record.last_error)}[/red]")
    rows.add_row(
        "Updated", f"{moment(record.update_at_us)} ({span(record.now_us - record.update_at_us)} ago)"
    )
    when = "" if record.expires_at_us is None else f"{moment(record.expires_at_us)} "
    rows.add_row("Expires", f"{when}({expiry(record)})" if when else expiry(record))
    if record.result is not None:
        rows.add_row("Result", plain(json.dumps(_loaded(record.result), ensure_ascii=False)))
    return rows


def _loaded(result: bytes) -> Any:
    try:
        return json.loads(result)
    except (ValueError, RecursionError):
        return result.decode("utf-8", "backslashreplace")
