"""Dead letters as people see them: in groups by their errors, one in full, and why a redrive left some."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from idempotent.admin import KeyRecord
from idempotent.redrive import Letter, Redriven
from idempotent.views.keys import moment, since, status_word
from idempotent.views.text import distinct

MOST_OF_BODY: Final = 10_000
"""The most characters of a body that people are shown."""
_NAMED: Final = 5


class Failed(Protocol):
    """What has an error: a letter, or a dead key without one."""

    @property
    def error(self) -> str:
        """The group of its reason, see `error_group`."""

    @property
    def reason(self) -> str:
        """Why it is dead."""

    @property
    def dead(self) -> KeyRecord | None:
        """Its dead key; None: its key is not dead, or is not stored."""


_T = TypeVar("_T", bound=Failed)


@dataclass(frozen=True, slots=True)
class ErrorGroup(Generic[_T]):
    """What died of one error.

    Attributes:
        error: the group's id.
        members: what is in it.
        dead_keys: how many of them have a dead key.
        first: the key that died first; None: no member has a dead key.
        last: the key that died last.
    """

    error: str
    members: Sequence[_T]
    dead_keys: int
    first: KeyRecord | None
    last: KeyRecord | None

    @property
    def reason(self) -> str:
        """The error of its first member."""
        return self.members[0].reason


def by_error(found: Iterable[_T]) -> list[ErrorGroup[_T]]:
    """The groups of errors, the largest first."""
    groups: defaultdict[str, list[_T]] = defaultdict(list)
    for each in found:
        groups[each.error].append(each)
    return [_group(error, groups[error]) for error in sorted(groups, key=lambda name: -len(groups[name]))]


def _group(error: str, members: Sequence[_T]) -> ErrorGroup[_T]:
    died = [dead for each in members if (dead := each.dead) is not None]
    first = min(died, key=_died_us, default=None)
    last = max(died, key=_died_us, default=None)
    return ErrorGroup(error, members, len(died), first, last)


def _died_us(record: KeyRecord) -> int:
    return record.update_at_us


def died(dead: KeyRecord | None, *, as_json: bool) -> str | None:
    """When a dead key died; None: the store does not say."""
    if dead is None:
        return None
    return moment(dead.update_at_us) if as_json else since(dead.update_at_us, dead.now_us)


def row(letter: Letter, *, as_json: bool) -> dict[str, Any]:
    """A letter as a row of a list."""
    return {
        "letter": letter.label,
        "message_id": None if letter.message.id is None else str(letter.message.id),
        "place": letter.place,
        "key": None if letter.record is None else status_word(letter.record.status),
        "died": died(letter.dead, as_json=as_json),
        "attempts": letter.attempts or None,
        "error": letter.error,
        "reason": letter.reason,
    }


def in_full(letter: Letter) -> dict[str, Any]:
    """Everything about a letter but its body."""
    message, record = letter.message, letter.record
    sent = message.timestamp
    return {
        **row(letter, as_json=True),
        "undecodable": letter.undecodable,
        "key_last_error": None if record is None else record.last_error,
        "origin": letter.origin,
        "sent": None if sent is None else sent.isoformat(timespec="seconds"),
        "headers": {str(name): _readable(value) for name, value in message.headers.items()},
        "body_bytes": None if message.body is None else len(message.body),
    }


def body_text(body: bytes) -> tuple[str, str]:
    """The form of a body, `text` or `base64`, and all of it in this form."""
    try:
        return "text", body.decode()
    except UnicodeDecodeError:
        return "base64", base64.b64encode(body).decode()


def _readable(value: Any) -> Any:
    """The value of a header, as JSON has it."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def why_stopped(done: Redriven) -> str:
    """Why a redrive ended with its first letters, those of `canary`."""
    if done.died:
        return f"{done.died} of {done.returned} died again. Mend the cause; the other letters stay."
    return (
        f"{done.open} of {done.returned} are not done in time: does a worker run, or do they wait for their backoff? "
        "The other letters stay."
    )


def changed_meanwhile(names: Sequence[str]) -> str:
    """That what a person decided about, or what was read, is left alone because it is another now."""
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    named = ", ".join(map(distinct, names[:_NAMED]))
    return f"{len(names):,} left alone because it has changed since it was shown or read: {named}{more}"


def why_left(done: Redriven, options: str) -> str:
    """Why a redrive left letters where they are.

    Args:
        done: what it did.
        options: the options that name the store to a command.
    """
    reasons = []
    if done.unknown:
        reasons.append(
            f"{done.unknown} whose effect is unknown: look whether it happened, then `idempotent keys resolve KEY "
            f"--done {options}`, or with --retry in the place of --done, or redrive with --include-unknown"
        )
    if done.again:
        reasons.append(
            f"{done.again} of messages that were returned already: copies, or they died again; what died again needs "
            "a mend of its cause before another redrive, and the log of the worker says which (message_dead)"
        )
    if done.others:
        reasons.append(f"{done.others} of other consumers or groups, which share the dead-letter target")
    if done.unreadable:
        reasons.append(f"{done.unreadable} with a part that cannot be decoded; the log says which, and why")
    if done.changed:
        reasons.append(changed_meanwhile(done.changed))
    counted = done.unknown + done.again + done.others + done.unreadable + len(done.changed)
    if rest := done.left - counted:
        reasons.append(f"{rest} without a key, which only a consumer with key= could run")
    return "; ".join(reasons) + "."
