"""`idempotent gc`: delete expired keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from idempotent.checkers.urls import StoreKind, scheme_of
from idempotent.cli.options import JsonOption, PrefixOption, TableOption, UrlOption
from idempotent.cli.stores import checker_at, ledger_of
from idempotent.cli.terminal.output import progress, tell
from idempotent.views.text import count

if TYPE_CHECKING:
    from idempotent.adapters.spark.ledger.runs import Collected


def gc(
    url: UrlOption,
    table: TableOption = None,
    prefix: PrefixOption = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Keys to delete in one transaction.")] = 1000,
    runs: Annotated[
        bool,
        typer.Option(
            "--runs",
            help="Also delete the claims of Spark's runs that were aborted, or whose retention_s is over.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete expired keys, in small batches. Workers do it automatically; cron can, too.

    Redis deletes them itself. Keys with a live lease are kept, and keys in progress of a consumer that parks. Spark's
    drivers collect their own ledger.
    """
    with checker_at(url, table=table, prefix=prefix) as checker, progress("deleting", quiet=as_json) as said:
        deleted = checker.garbage_collect(
            batch_size=batch_size, on_batch=lambda so_far: said(f"{count(so_far, 'expired key')} deleted")
        )
        collected = collect_runs(url, table, prefix) if runs else None
    text = f"[green]Done:[/green] {count(deleted, 'expired key')} deleted."
    if scheme_of(url).kind is StoreKind.REDIS:
        text = "[green]Nothing to do:[/green] Redis deletes expired keys automatically."
    if collected:
        text += f" {in_words(collected)}"
    tell(text, as_json=as_json, deleted=deleted, **(collected._asdict() if collected else {}))


def collect_runs(url: str, table: str | None, prefix: str | None) -> Collected:
    """Collect the ledger of Spark's runs."""
    from idempotent.adapters.spark.ledger import open_ledger
    from idempotent.adapters.spark.ledger.runs import Collected

    done = Collected()
    with open_ledger(ledger_of(url, table, prefix)) as ledger:
        while any(part := ledger.collect()):
            done = Collected(*map(sum, zip(done, part, strict=True)))
    return done


def in_words(done: Collected) -> str:
    """What was collected, for people."""
    words = f"{count(done.runs, 'run')} and {count(done.claims, 'claim')} of runs deleted"
    return f"{words}, {count(done.aborted, 'run')} without a driver aborted."
