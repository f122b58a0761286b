"""`idempotent runs`: look at Spark's runs, and end those that no driver will go on with, or its lease."""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import Enum
from itertools import islice
from shlex import quote
from typing import Annotated, Any, Final, TypeAlias

import typer

from idempotent.adapters.spark.ledger import RunLedger, RunRow, RunState, open_ledger
from idempotent.adapters.spark.ledger.aborting import abort_as_seen, end_lease_as_seen, existing
from idempotent.adapters.spark.ledger.refusals import command
from idempotent.admin import StoreStats
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.urls import StoreKind, scheme_of
from idempotent.cli.exits import epilog
from idempotent.cli.keys.gc import collect_runs, in_words
from idempotent.cli.options import JsonOption, LimitOption, PrefixOption, TableOption, UrlOption, YesOption
from idempotent.cli.stores import demand_file, ledger_of
from idempotent.cli.terminal.output import (
    confirm,
    emit,
    me,
    most,
    note,
    plain,
    say,
    show_record,
    show_rows,
    tell,
)
from idempotent.errors import ConfigurationError, StoreError, url_word
from idempotent.views.keys import moment, since
from idempotent.views.text import count
from idempotent.worker.store_watch import with_runs

_NOTHING_STAGED: Final = (
    "begin it again with this run_id: it goes over its effects without repeating one, and commits. If it has new rows, "
    "as idempotent_partitions makes them, they were not staged and cannot be published again. Then, or if it never "
    "succeeds, and nothing of it is published: {abort} --unpublished {options}"
)
_LIVES: Final = "let its driver end. If you have seen that its process has ended: {end_lease} {options}"
# For each state, and whether its lease has ended: what it means, and what helps. A ledger sees renewals alone: the
# driver of a living lease may have been killed since the last one, that of an ended one may be paused.
_STATES: Final = {
    (RunState.OPEN, False): (
        "its lease lives: a driver evaluates its input, or was killed less than lease_s ago",
        _LIVES,
    ),
    (RunState.OPEN, True): (
        "nobody has renewed its lease: its driver has ended or stands still; a run that meets its keys aborts it",
        "begin it again with this run_id. If it shall not run: {abort} {options}",
    ),
    (RunState.PREPARED, False): (
        "its lease lives: a driver publishes its output, or was killed less than lease_s ago",
        _LIVES,
    ),
    (RunState.PREPARED, True): (
        (
            "nobody has renewed its lease: its driver is gone or stands still, and may have published; other runs wait "
            "for its keys"
        ),
        (
            "begin it again with this run_id: it publishes what is staged, and evaluates nothing. If that never "
            "succeeds, and nothing of it is published: {abort} --unpublished {options}"
        ),
    ),
    (RunState.COMMITTED, True): (
        "its output is published, and its keys are duplicates for other runs",
        "nothing",
    ),
    (RunState.ABORTED, True): (
        "it does not count, and its keys are free",
        "nothing; a begin with this run_id evaluates its input anew",
    ),
}


class State(Enum):
    """The states of a run."""

    OPEN = "open"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ABORTED = "aborted"


_Consumer: TypeAlias = Annotated[
    str, typer.Option("--consumer", metavar="NAME", show_default=False, help="The consumer of the run.")
]
_RunId: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="RUN", show_default=False, help="Its run_id, as `idempotent runs list` shows it."),
]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at the runs of Spark, and end those that no driver will go on with, or its lease.",
)


@app.command(
    "list",
    epilog=epilog(
        "idempotent runs list --url sqlite:///runs.db --state open --state prepared",
        "idempotent runs list --consumer orders --claims",
        "idempotent runs list --json | jq -r .run_id",
    ),
)
def list_runs(
    url: UrlOption,
    consumer: Annotated[
        str | None,
        typer.Option("--consumer", metavar="NAME", show_default=False, help="Only runs of this consumer."),
    ] = None,
    state: Annotated[
        list[State] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            show_default=False,
            help="Only in this state: open, prepared, committed or aborted; may be repeated.",
        ),
    ] = None,
    claims: Annotated[
        bool,
        typer.Option("--claims", help="Also count the keys of each run, for which SQL reads an index."),
    ] = False,
    limit: LimitOption = None,
    table: TableOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """List runs, the newest first; without a limit in no order. Leases are counted by the store's clock."""
    wanted = most(limit, as_json=as_json)
    states = {RunState[each.name] for each in state or State}
    with _ledger_at(url, table, prefix) as (ledger, _):
        found: Iterable[RunRow] = ledger.store.listed(states, consumer)
        if wanted:
            # One more than wanted shows whether more exist.
            found = heapq.nlargest(wanted + 1, found, key=lambda row: row.began_at_us)
        look = _json if as_json else _row
        rows = ({**look(row), **(_claims(ledger, row) if claims else {})} for row in found)
        shown = show_rows(islice(rows, wanted), as_json=as_json, otherwise="No such run.")
        if shown and next(rows, None):
            note(f"The newest {shown:,}; --limit 0 for all, or choose: --consumer, --state.")


@app.command(epilog=epilog("idempotent runs show 2026-11-28 --consumer orders --url sqlite:///runs.db"))
def show(
    run_id: _RunId,
    consumer: _Consumer,
    url: UrlOption,
    table: TableOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a run: its state, who has it, what it has staged, and what helps. Exit code 1: there is no such run."""
    with _ledger_at(url, table, prefix) as (ledger, options):
        row = existing(ledger, consumer, run_id)
        counted = _claims(ledger, row)
    manifest, (means, helps) = _loaded(row.manifest), _told(row, options)
    values = {
        **_json(row),
        "prepared_epoch": row.prepared or None,
        "fingerprint": None if row.fingerprint is None else row.fingerprint.hex(),
        **counted,
    }
    if as_json:
        emit(**values, manifest=manifest, helps=helps)
        return
    values["state"] = f"{row.state.name}: {means}"
    # In the place of both that a machine gets.
    names = {"lapsed": "lease"}
    values["lapsed"] = "" if row.state.is_final else row.holder
    del values["lease_until"]
    show_record({names.get(name, name): value for name, value in values.items()})
    for each in manifest if isinstance(manifest, list) else [manifest]:
        show_record({"staged": _staged(each)})
    say(f"[bold]What helps:[/bold] {plain(helps)}")


@app.command(
    epilog=epilog(
        "idempotent runs abort 2026-11-28 --consumer orders --url sqlite:///runs.db",
        "idempotent runs abort 2026-11-28 --consumer orders --unpublished --url sqlite:///runs.db",
    )
)
def abort(
    run_id: _RunId,
    consumer: _Consumer,
    url: UrlOption,
    unpublished: Annotated[
        bool,
        typer.Option(
            "--unpublished", help="Abort a PREPARED run too: I have seen that nothing of it is published."
        ),
    ] = False,
    yes: YesOption = False,
    table: TableOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Abort a run that no driver has any more. Its keys are free, and the next begin evaluates its input anew.

    Before --unpublished, look that none of its output is published, or take away what is, and that no driver of it is
    alive, a paused one either: else rows are published twice.

    Exit code 1: there is no such run, a driver has it, it is COMMITTED, or PREPARED without --unpublished.
    """
    with _ledger_at(url, table, prefix) as (ledger, _):
        row = existing(ledger, consumer, run_id)
        if unpublished and row.state is RunState.PREPARED and row.lapsed:
            keys = count(_claims(ledger, row)["claims"], "key")
            confirm(
                f"Is nothing of {row.ref} published, and every driver of it dead, one that was paused too? "
                f"Then abort it, and free its {keys}.",
                yes=yes,
            )
        done = abort_as_seen(ledger, row, unpublished=unpublished, by=me())
    was = row.state.name.lower()
    text = (
        f"[green]Done:[/green] {plain(str(row.ref))} aborted (was: {was})."
        if done
        else "It had been aborted before."
    )
    tell(text, as_json=as_json, consumer=consumer, run_id=run_id, was=was, changed=done)


@app.command(
    "end-lease",
    epilog=epilog("idempotent runs end-lease 2026-11-28 --consumer orders --url sqlite:///runs.db"),
)
def end_lease(
    run_id: _RunId,
    consumer: _Consumer,
    url: UrlOption,
    yes: YesOption = False,
    table: TableOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """End the lease of a driver that was killed: the next begin, or `runs abort`, need not wait for the rest of it.

    Look first that its process has ended. A driver that lives renews its lease within a third of lease_s and goes on,
    unless another has begun the run before, or, if it is OPEN, another run has met its keys and aborted it.

    Exit code 1: there is no such run, it has ended, or its driver has renewed the lease meanwhile.
    """
    with _ledger_at(url, table, prefix) as (ledger, options):
        row = existing(ledger, consumer, run_id)
        if not (row.state.is_final or row.lapsed):
            driver = row.driver or "of its driver"
            confirm(
                f"Has the process {driver} ended? A living driver renews its lease and goes on. End the lease of "
                f"{row.ref}?",
                yes=yes,
            )
        done = end_lease_as_seen(ledger, row)
    _, helps = _told(replace(row, lease_until_us=row.now_us - 1), options)
    text = f"[green]Done:[/green] the lease of {plain(str(row.ref))} has ended."
    if not done:
        text = f"Nothing to do: {plain(row.holder)}."
    state = row.state.name.lower()
    tell(text, as_json=as_json, consumer=consumer, run_id=run_id, state=state, changed=done, helps=helps)
    if not as_json:
        say(f"[bold]What helps:[/bold] {plain(helps)}")


@app.command(epilog=epilog("idempotent runs gc --url mysql+pymysql://user:password@host/db"))
def gc(
    url: UrlOption, table: TableOption = None, prefix: PrefixOption = None, as_json: JsonOption = False
) -> None:
    """Delete what no run needs any more, as `idempotent gc --runs` does; nothing that counts.

    That is: claims of aborted runs, and committed runs with their claims a retention after their end. Open runs that
    began a retention ago and have no driver are aborted: they can no longer be prepared.
    """
    done = collect_runs(url, table, prefix)
    text = f"[green]Done:[/green] {in_words(done)}"
    if scheme_of(url).kind is StoreKind.REDIS:
        text = "[green]Nothing to do:[/green] Redis deletes what has expired automatically."
    tell(text, as_json=as_json, **done._asdict())


def counted(checker: AbstractIdempotentChecker, url: str, prefix: str | None) -> Mapping[str, int]:
    """How many runs stand beside these keys, by state; an application without Spark need not have their tables."""
    with suppress(ConfigurationError, StoreError):
        if scheme_of(url).kind is StoreKind.SQL:
            return with_runs(checker, StoreStats({}, 0)).runs
        with open_ledger(ledger_of(url, None, prefix)) as ledger:
            return Counter(row.state.name.lower() for row in ledger.store.listed(list(RunState)))
    return {}


def options_of(url: str, table: str | None, prefix: str | None) -> str:
    """The options that name the ledger to another command."""
    given = {"--table": table, "--prefix": prefix}
    return " ".join(
        [f"--url {url_word(url)}", *(f"{name} {quote(each)}" for name, each in given.items() if each)]
    )


@contextmanager
def _ledger_at(url: str, table: str | None, prefix: str | None) -> Iterator[tuple[RunLedger, str]]:
    """The ledger beside these keys, and the options that name it."""
    demand_file(url, table)
    with open_ledger(ledger_of(url, table, prefix)) as ledger:
        yield ledger, options_of(url, table, prefix)


def _claims(ledger: RunLedger, row: RunRow) -> dict[str, int]:
    """How many keys the attempt has claimed that counts, or is to count."""
    return {"claims": ledger.store.count_owned(row.at(row.prepared or row.ref.epoch).ref)}


def _row(row: RunRow) -> dict[str, Any]:
    """A run as a row of a list for people: times are counted from now."""
    final = row.state.is_final
    ends = f"{'ended' if row.lapsed else 'ends'} {since(row.lease_until_us, row.now_us)}"
    return {
        "run": row.ref.run_id,
        "consumer": row.ref.consumer,
        "state": row.state.name,
        "lease": "" if final else ends,
        "driver": row.driver,
        "began": since(row.began_at_us, row.now_us),
        "means": _told(row, "")[0],
    }


def _json(row: RunRow) -> dict[str, Any]:
    """A run for machines."""
    return {
        "consumer": row.ref.consumer,
        "run_id": row.ref.run_id,
        "state": row.state.name.lower(),
        "lapsed": row.lapsed and not row.state.is_final,
        "lease_until": None if row.state.is_final else moment(row.lease_until_us),
        "driver": row.driver or None,
        "began_at": moment(row.began_at_us),
        "generation": row.ref.generation,
        "epoch": row.ref.epoch,
        "output_ref": row.output_ref,
    }


def _loaded(manifest: bytes | None) -> Any:
    """What is staged, as the run has written it."""
    text = (manifest or b"[]").decode(errors="backslashreplace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _staged(part: Any) -> Any:
    """What is staged in one folder, for people: where its files are, wherever the driver was started."""
    if not isinstance(part, dict) or "path" not in part:
        return part
    files = part.get("files", ())
    folder = files[0].rpartition("/")[0] if files else part["path"]
    return f"{folder}: {count(len(files), 'file')}, {count(part.get('rows', 0), 'row')}"


def _told(row: RunRow, options: str) -> tuple[str, str]:
    """What the state of a run means, and what helps."""
    means, helps = _STATES[row.state, row.lapsed or row.state.is_final]
    if row.state is RunState.PREPARED and row.lapsed and not _loaded(row.manifest):
        helps = _NOTHING_STAGED
    for word, what in (("{abort}", "abort"), ("{end_lease}", "end-lease")):
        helps = helps.replace(word, command(what, row.ref))
    return means, helps.replace("{options}", options)
