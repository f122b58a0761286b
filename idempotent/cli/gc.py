"""`idempotent gc`: delete expired keys."""

from __future__ import annotations

from typing import Annotated

import typer

from idempotent.checkers.urls import StoreKind, scheme_of
from idempotent.cli.options import JsonOption, PrefixOption, TableOption, UrlOption
from idempotent.cli.stores import checker_at
from idempotent.cli.terminal.output import Unit, count, emit, progress, say


def gc(
    url: UrlOption,
    table: TableOption = None,
    prefix: PrefixOption = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Keys to delete in one transaction.")] = 1000,
    as_json: JsonOption = False,
) -> None:
    """Delete expired keys, in small batches. Workers do it automatically; cron can, too.

    Redis deletes them itself. Keys with a live lease are kept, and keys in progress of a consumer that parks.
    """
    with (
        checker_at(url, table=table, prefix=prefix) as checker,
        progress(Unit.UNBOUNDED, quiet=as_json) as bar,
    ):
        task = bar.add_task("deleting expired keys", total=None)
        deleted = checker.garbage_collect(
            batch_size=batch_size,
            on_batch=lambda so_far: bar.update(task, description=f"{so_far:,} expired keys deleted"),
        )
    if as_json:
        emit(deleted=deleted)
    elif scheme_of(url).kind is StoreKind.REDIS:
        say("[green]Nothing to do:[/green] Redis deletes expired keys automatically.")
    else:
        say(f"[green]Done:[/green] {count(deleted, 'expired key')} deleted.")
