"""waves: divides messages into batches that a broker may take in part."""

from __future__ import annotations

from collections.abc import Sequence

from idempotent.outbox.store import Waiting


def waves(messages: Sequence[Waiting], most: int) -> list[list[Waiting]]:
    """The messages in batches that have at most one of each lane: a batch may stop midway."""
    found: list[list[Waiting]] = []
    after: dict[bytes, int] = {}
    for message in messages:
        number = after.get(message.lane, 0)
        while number < len(found) and len(found[number]) >= most:
            number += 1
        if number == len(found):
            found.append([])
        found[number].append(message)
        after[message.lane] = number + 1
    return found
