"""`idempotent gc`: delete expired keys."""

from __future__ import annotations

from typing import Annotated

import typer

from idempotent.checkers.urls import StoreKind, scheme_of
from idempotent.cli.options import JsonOption, PrefixOption, TableOption, UrlOption, seconds
from idempotent.cli.stores import checker_at
from idempotent.cli.terminal.output import Unit, count, progress, tell
from idempotent.schema import DEFAULT_TABLE


def gc(
    url: UrlOption,
    table: TableOption = None,
    prefix: PrefixOption = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Keys to delete in one transaction.")] = 1000,
    runs: Annotated[
        float | None,
        typer.Option(
            parser=seconds,
            metavar="DURATION",
            show_default=False,
            help="Also delete the claims of Spark's runs that were aborted, or ended longer ago than this: the "
            "retention_s of your StoreConfig.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Delete expired keys, in small batches. Workers do it automatically; cron can, too.

    Redis deletes them itself. Keys with a live lease are kept, and keys in progress of a consumer that parks. Spark's
    drivers collect their own ledger.
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
        claims = {} if runs is None else {"claims": _collect(url, table, prefix, runs)}
    text = f"[green]Done:[/green] {count(deleted, 'expired key')} deleted."
    if scheme_of(url).kind is StoreKind.REDIS:
        text = "[green]Nothing to do:[/green] Redis deletes expired keys automatically."
    if claims:
        text += f" {count(claims['claims'], 'claim')} of runs deleted."
    tell(text, as_json=as_json, deleted=deleted, **claims)


def _collect(url: str, table: str | None, prefix: str | None, retention_s: float) -> int:
    """Collect the ledger of Spark's runs; the number of claims deleted."""
    from idempotent.adapters.spark.ledger import StoreConfig, open_ledger
    from idempotent.adapters.spark.ledger.config import DEFAULT_PREFIX

    names = {"table": table or DEFAULT_TABLE, "prefix": prefix or DEFAULT_PREFIX}
    deleted = 0
    with open_ledger(StoreConfig(url, retention_s=retention_s, **names)) as ledger:
        while part := ledger.gc():
            deleted += part
    return deleted
