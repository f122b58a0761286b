"""How much goes into one statement: rows by number, stored results by size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from idempotent.checkers.sql.statements import MAX_ROWS
from idempotent.claims import Completion
from idempotent.logs import EventLog
from idempotent.observe.counting import CountEvent
from idempotent.observe.events import Event
from idempotent.observe.fields import about_key
from idempotent.stores.sql.cursor import DriverConnection, query
from idempotent.stores.sql.dialects import SqlDialect
from idempotent.values import changed

log = EventLog(__name__)

PART_BYTES: Final = 200_000
"""The results in one statement, in bytes, if there is more than one. The drivers of MySQL send each byte as two."""
_REST_BYTES: Final = 1000


def parts_of(completions: Sequence[Completion]) -> Iterator[list[Completion]]:
    """The completions in parts for one statement each: sorted by key, each key once.

    Such a statement names the keys and the owner tokens, not pairs of them. So a part has one token, or tokens of one
    claim each: a token that several claims share could otherwise complete the key of another claim.
    """
    owners: dict[bytes, list[Completion]] = {}
    for completion in sorted(completions, key=_hash):
        owners.setdefault(completion.claim.owner, []).append(completion)
    single: list[Completion] = []
    for group in owners.values():
        if len(group) == 1:
            single += group
        else:
            yield from _cut(group)
    yield from _cut(single)


def _cut(group: Sequence[Completion]) -> Iterator[list[Completion]]:
    part: list[Completion] = []
    size = 0
    last = b""
    for completion in group:
        hashed, result = completion.claim.key.hash, completion.result
        more = 0 if result is None else len(result)
        if part and (hashed == last or size + more > PART_BYTES or len(part) == MAX_ROWS):
            yield part
            part, size = [], 0
        part.append(completion)
        size += more
        last = hashed
    if part:
        yield part


def storable(
    dialect: SqlDialect, connection: DriverConnection, completion: Completion, count: CountEvent
) -> Completion:
    """The completion, without its result if the server would refuse a statement that contains it.

    The effect has happened, or is about to be committed: it must not fail for the sake of its result.

    Args:
        dialect: the properties of the database.
        connection: to that server.
        completion: with a result or without.
        count: counts a result that is left out.
    """
    size = len(completion.result or b"")
    if size <= PART_BYTES or dialect.statement_limit is None:
        return completion
    if connection.statement_limit is None:
        ((limit,),) = query(connection, dialect.statement_limit)
        connection.statement_limit = int(limit)
    if 2 * size + _REST_BYTES <= connection.statement_limit:
        return completion
    key = completion.claim.key
    count(key.consumer, Event.RESULT_NOT_STORED)
    why = f"{size} bytes; the server's max_allowed_packet is {connection.statement_limit}"
    log.warning("result_not_stored", extra={**about_key(key), "why": why})
    return changed(completion, result=None)


def _hash(completion: Completion) -> bytes:
    return completion.claim.key.hash
