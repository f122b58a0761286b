"""`idempotent migrate`: create, upgrade, check and remove the tables."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Annotated

import typer
from sqlalchemy import Engine

from idempotent import migrations
from idempotent.cli.exits import ExitCode, epilog
from idempotent.cli.options import JsonOption, TableOption, UrlOption, YesOption
from idempotent.cli.stores import database_at
from idempotent.cli.terminal.output import confirm, emit, plain, say, show_table, tell
from idempotent.errors import SchemaError, mask
from idempotent.migrations.revisions import is_newer
from idempotent.outbox import Outbox
from idempotent.stores.sql.faults import in_own_history
from idempotent.views.text import count

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Create, check and remove the tables of an SQL store. A checker never does it automatically.",
)

Revision = Annotated[str, typer.Option("--revision", metavar="REVISION", help="The revision to reach.")]


@app.command(
    epilog=epilog(
        "idempotent migrate upgrade --url sqlite:///app.db",
        "idempotent migrate upgrade --url mysql+pymysql://user:password@host/db --table billing_keys",
    )
)
def upgrade(
    url: UrlOption,
    table: TableOption = None,
    revision: Revision = "head",
    create_missing: Annotated[
        bool,
        typer.Option(
            "--create-missing",
            help="Create missing tables, empty: the keys and unpublished messages that were in them are lost.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Create the tables, or bring them up to date. Safe at every start of every process.

    Exit code 1: the tables differ from those that this version needs.
    """
    with database_at(url, table, must_exist=False) as (engine, name, _):
        before = migrations.current(engine, table=name)
        was_missing = create_missing and before is not None and bool(migrations.check(engine, table=name))
        migrations.upgrade(engine, table=name, revision=revision, create_missing=create_missing)
        after = migrations.current(engine, table=name)
        drifts = migrations.check(engine, table=name) if revision == "head" else []
    text = f"[green]Done:[/green] {name} is at revision {after} (was: {before or 'none'})."
    if before == after and not was_missing:
        text = f"[green]Up to date:[/green] {name} is at revision {after}."
    if is_newer(after):
        text = _newer(name, after)
    if drifts:
        text = f"[yellow]Different:[/yellow] {name} is at revision {after}, but not as this version needs it."
    tell(text, as_json=as_json, table=name, before=before, revision=after, differences=_records(drifts))
    if drifts:
        if not as_json:
            show_table(_records(drifts))
        raise typer.Exit(ExitCode.ATTENTION)


@app.command(epilog=epilog("idempotent migrate downgrade --url sqlite:///app.db"))
def downgrade(
    url: UrlOption,
    table: TableOption = None,
    revision: Revision = "base",
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove the tables with all their keys: messages redelivered after that run again.

    With --revision remove only what later revisions made, with what is in it.
    """
    with database_at(url, table) as (engine, name, _):
        before = migrations.current(engine, table=name)
        messages = 0 if before is None or revision != "base" else _unpublished(engine, name)
        if before is not None:
            confirm(f"{_what_goes(name, revision, messages)} from {mask(url)}?", yes=yes)
        migrations.downgrade(engine, table=name, revision=revision)
        after = migrations.current(engine, table=name)
    text = f"[green]Done:[/green] {name} is at revision {after or 'none'} (was: {before})."
    if before is None:
        text = f"[yellow]Nothing to do:[/yellow] no migration has created {name} here."
    elif messages:
        text += (
            f" [yellow]{count(messages, 'message')}[/yellow] of its outbox, or more, will never be published."
        )
    tell(text, as_json=as_json, table=name, before=before, revision=after, messages=messages)


def _unpublished(engine: Engine, table: str) -> int:
    """How many messages wait in the outbox; 0 also if its tables are not whole."""
    with closing(Outbox(engine, table=table)) as outbox, suppress(SchemaError):
        stats = outbox.store.stats()
        return stats.waiting + stats.held + stats.delayed
    return 0


def _newer(table: str, revision: str | None) -> str:
    return (
        f"[green]Ahead:[/green] {table} is at revision {revision}, which a newer version made; it has all that this "
        "version needs."
    )


def _what_goes(table: str, revision: str, messages: int) -> str:
    if revision == "base":
        waiting = f"what waits in its outbox ({count(messages, 'message')})"
        return f"Remove {table}, every key in it and {waiting}"
    return (
        f"Remove what the revisions of {table} after {revision} made, with what is in it, such as messages,"
    )


@app.command(epilog=epilog("idempotent migrate current --url sqlite:///app.db"))
def current(url: UrlOption, table: TableOption = None, as_json: JsonOption = False) -> None:
    """Show the revision of the tables. Exit code 1: no migration has created them."""
    with database_at(url, table, only_reads=True) as (engine, name, _):
        revision = migrations.current(engine, table=name)
        # An application's own history keeps no revision of ours.
        own_history = revision is None and not migrations.check(engine, table=name)
    text = f"{name} is at revision [bold]{revision}[/bold]."
    if is_newer(revision):
        text = f"{name} is at revision [bold]{revision}[/bold], which a newer version made."
    if own_history:
        text = (
            f"[green]Own history:[/green] other migrations have created {name}, which matches this version."
        )
    elif revision is None:
        text = f"[yellow]None:[/yellow] no migration has created {name} here."
    tell(text, as_json=as_json, table=name, revision=revision, own_history=own_history)
    if revision is None and not own_history:
        raise typer.Exit(ExitCode.ATTENTION)


@app.command(
    epilog=epilog(
        "idempotent migrate check --url sqlite:///app.db",
        "idempotent migrate check --url $URL --json | jq .differences",
    )
)
def check(url: UrlOption, table: TableOption = None, as_json: JsonOption = False) -> None:
    """Compare the tables with those this version needs. Reads only. Exit code 1: they differ."""
    with database_at(url, table, only_reads=True) as (engine, name, options):
        drifts = migrations.check(engine, table=name)
        revision = None if drifts else migrations.current(engine, table=name)
    if as_json:
        emit(table=name, differences=_records(drifts))
    elif not drifts:
        equal = f"[green]Equal:[/green] {name} matches this version."
        say(_newer(name, revision) if is_newer(revision) else equal)
    else:
        show_table(_records(drifts))
        kinds = migrations.DriftKind
        missing = [drift.table for drift in drifts if drift.kind is kinds.MISSING_TABLE]
        if missing and drifts[0].kind is not kinds.NEWER_REVISION:
            say(f"Type: [bold cyan]idempotent migrate upgrade {plain(options)} --create-missing[/bold cyan]")
            say(f"Or, {in_own_history(missing, name)}")
    if drifts:
        raise typer.Exit(ExitCode.ATTENTION)


def _records(drifts: list[migrations.Drift]) -> list[dict[str, str]]:
    return [{"kind": d.kind.value, "table": d.table, "name": d.name, "detail": d.detail} for d in drifts]
