"""`idempotent keys import`: marks as done what was processed before the library came."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Annotated, Any

import typer

from idempotent.admin import KeyAdmin, refuse_own
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.claims import ClaimRequest, Completion, Decision, Verdict
from idempotent.cli.exits import ExitCode
from idempotent.cli.options import (
    BatchSizeOption,
    ConsumerOption,
    JsonOption,
    PrefixOption,
    TableOption,
    UrlOption,
)
from idempotent.cli.stores import checker_at, parsed_key
from idempotent.cli.terminal.output import plain, progress, tell
from idempotent.errors import ConfigurationError, StoreBusyError
from idempotent.keys import Key, KeySpace, id_of, space_named
from idempotent.views.text import count


def import_keys(
    file: Annotated[
        typer.FileBinaryRead,
        typer.Argument(metavar="FILE", show_default=False, help="JSON Lines; - is standard input."),
    ],
    url: UrlOption,
    consumer: ConsumerOption = None,
    batch_size: BatchSizeOption = 500,
    table: TableOption = None,
    prefix: PrefixOption = None,
    json: JsonOption = False,
) -> None:
    """Mark keys as done whose messages were processed before: their next delivery is a duplicate.

    A line is {"id": "4711"}, a message id of --consumer, or {"key": "subject:group:id"}, as `keys list --json` writes
    it; other fields are passed over. A key whose handler runs and a dead one stay as they are. Run it as often as you
    like. Keys are kept as long as the checker of --url keeps them: sqlite:///app.db?retention_s=2592000.

    Exit code 1: keys were left alone; 2: a line is wrong, and the batches before it are done.
    """
    space = None if consumer is None else space_named(consumer)
    if consumer is not None and space is None:
        raise typer.BadParameter("--consumer takes subject:group, as `idempotent keys stats` shows it")
    counted: Counter[Verdict] = Counter()
    with checker_at(url, table=table, prefix=prefix) as checker, progress("importing", quiet=json) as said:
        keys = _keys(file, space)
        while batch := list(islice(keys, batch_size)):
            counted.update(mark_done(checker, batch))
            said(f"{count(counted.total(), 'key')} imported")
    done, known = counted[Verdict.ACQUIRED], counted[Verdict.DUPLICATE]
    dead, busy = counted[Verdict.DEAD], counted[Verdict.IN_PROGRESS]
    text = f"[green]Done:[/green] {count(done, 'key')} marked done, {known:,} were done before."
    left = ""
    if dead or busy:
        options = plain(checker.command_options)
        left = (
            f"[yellow]Left alone:[/yellow] {dead:,} dead, {busy:,} in progress. "
            f"`idempotent keys list --status dead --status in_progress {options}` shows them."
        )
    tell(text, left, as_json=json, imported=done, done_before=known, dead=dead, in_progress=busy)
    if left:
        raise typer.Exit(ExitCode.ATTENTION)


def mark_done(checker: AbstractIdempotentChecker, keys: Iterable[Key]) -> Iterable[Verdict]:
    """Make keys DONE that are new, whose lease has lapsed, or that wait for their retry.

    Returns the answers to their claims: ACQUIRED for those that are DONE now. A key that comes twice has one.
    """
    distinct = [*{key.hash: key for key in keys}.values()]
    decisions = _decisions(checker, distinct)
    claims = [decision.claim for decision in decisions if decision.claim is not None]
    if claims:
        checker.protocol.complete_many([Completion(claim) for claim in claims])
    admin = checker.admin()
    return [
        Verdict.ACQUIRED if decision.held and _mark_held_done(admin, key) else decision.verdict
        for key, decision in zip(distinct, decisions, strict=True)
    ]


def _decisions(checker: AbstractIdempotentChecker, keys: Sequence[Key]) -> list[Decision]:
    requests = [ClaimRequest(key) for key in keys]
    try:
        return checker.protocol.claim_many(requests)
    except StoreBusyError:  # a transaction holds one of the keys: alone, that one is IN_PROGRESS
        return [checker.protocol.claim(request) for request in requests]


def _mark_held_done(admin: KeyAdmin, key: Key) -> bool:
    """Make a key DONE whose handler failed and does not run before its backoff is over; False: it runs again."""
    record = admin.get(key)
    return record is not None and record.held and admin.mark_done(record)


def _keys(lines: Iterable[bytes], space: KeySpace | None) -> Iterator[Key]:
    """The key of each line. Raises typer.BadParameter: a line has none."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                key = _key(json.loads(line), space)
                refuse_own(key.text)
            except (ValueError, TypeError, RecursionError, typer.BadParameter, ConfigurationError) as error:
                raise typer.BadParameter(f"line {number}: {error}") from None
            yield key


def _key(record: Any, space: KeySpace | None) -> Key:
    match record:
        case {"key": str(text)}:
            return parsed_key(text)
        case {"id": given} if space is not None:
            return space.key(id_of(given, "an id"))
        case {"id": _}:
            raise TypeError("an id needs --consumer, to say whose it is")
    raise TypeError('write {"id": "4711"}, or {"key": "subject:group:id"}')
