"""`idempotent doctor`: find what breaks the promises of a store and of brokers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from shlex import quote
from typing import Annotated, Final
from urllib.parse import urlencode

import typer

from idempotent.adapters import adapter_from_url
from idempotent.adapters.spark.ledger import RunState, open_ledger
from idempotent.admin import DEAD_LIST, Finding, KeyAdmin, KeyFilter, Level
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.pauses import pauses_in
from idempotent.checkers.urls import StoreKind, scheme_of
from idempotent.claims import KeyStatus
from idempotent.cli import runs
from idempotent.cli.exits import ExitCode
from idempotent.cli.keys.pausing import in_words as pause_in_words
from idempotent.cli.modules import registry_at
from idempotent.cli.options import (
    BrokersOption,
    JsonOption,
    OptionalUrlOption,
    PrefixOption,
    TableOption,
    in_words,
    seconds,
)
from idempotent.cli.stores import checker_at, ledger_of, outbox_at, tables
from idempotent.cli.terminal.output import emit, plain, progress, say
from idempotent.consumer import AnyConsumer
from idempotent.errors import (
    AdapterError,
    ConfigurationError,
    SchemaError,
    StoreError,
    UnknownCheckerError,
    mask,
    url_word,
)
from idempotent.keys import consumer_in
from idempotent.outbox.admin import OutboxAdmin
from idempotent.outbox.store import AHEAD_US
from idempotent.schema import DEFAULT_TABLE
from idempotent.views.keys import numbers
from idempotent.views.text import count

# Enough to see the retention of every active consumer; few enough to read in one go.
_SAMPLE: Final = 2000
_SHOWN_RUNS: Final = 5
_MARKS: Final = {
    Level.ERROR: "[bold red]error:[/bold red]",
    Level.WARNING: "[yellow]warning:[/yellow]",
    Level.ADVICE: "[cyan]advice:[/cyan]",
    Level.OK: "[green]ok:[/green]",
}


def doctor(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE",
            show_default=False,
            help="The module of the consumers whose queues or topics are checked, or MODULE:REGISTRY.",
        ),
    ] = None,
    url: OptionalUrlOption = None,
    table: TableOption = None,
    prefix: PrefixOption = None,
    broker: BrokersOption = None,
    subject: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="Check this queue or topic of the brokers; may be repeated, and replaces MODULE.",
        ),
    ] = None,
    redelivery_horizon: Annotated[
        float | None,
        typer.Option(
            parser=seconds,
            metavar="DURATION",
            show_default=False,
            help="The longest time after which a message can be redelivered: 12h, 14d. Keys kept for less are "
            "reported.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find what breaks the promises of a store (--url), of brokers (--broker, may be repeated), or of both.

    Of a store: a missing or changed table; settings under which a crash loses keys; keys deleted while their messages
    can still be redelivered; keys and runs that wait for a person; paused consumers; a clock that has gone back; an
    outbox that no relay publishes. Of a broker: missing queues, topics and targets of dead letters; what removes
    messages that nobody has processed; too few copies. Reads only: it makes, consumes and changes nothing.

    Exit code 1: a warning or an error was found; 4: the store is unreachable; 5: a broker is.
    """
    if not url and not broker:
        raise typer.BadParameter("give --url (IDEMPOTENT_URL), --broker (IDEMPOTENT_BROKER), or both")
    if (target or subject) and not broker:
        raise typer.BadParameter("MODULE and --subject say what to check of a broker: give --broker")
    findings: list[Finding] = []
    fault = ExitCode.OK
    with progress("checking", quiet=as_json):
        subjects, checkers = _declared(None if subject else target)
        given = {
            "MODULE": None if target is None else quote(target),
            "--broker URL": f"--broker {url_word(broker[0])}" if broker and len(broker) == 1 else None,
            "--checker NAME=URL": _checker_options(checkers, url, table, prefix),
        }
        for each in broker or ():
            try:
                found = adapter_from_url(each).findings(subject or subjects, horizon_s=redelivery_horizon)
                findings += _filled(found, {**given, "--broker URL": f"--broker {url_word(each)}"})
            except AdapterError as error:
                findings.append(Finding(Level.ERROR, str(error)))
                fault = ExitCode.BROKER
        try:
            if url:
                with checker_at(url, table=table, prefix=prefix) as checker:
                    findings += _filled(_look(checker, redelivery_horizon, url, table, prefix), given)
            else:
                findings.append(
                    Finding(
                        Level.ADVICE,
                        "no store of keys is looked at",
                        "give the one of the consumers: --url URL, or the variable IDEMPOTENT_URL",
                    )
                )
        except StoreError as error:
            findings.append(Finding(Level.ERROR, str(error)))
            if not isinstance(error, SchemaError):
                fault = ExitCode.STORE
    _show(
        findings,
        as_json=as_json,
        healthy="Healthy."
        if url
        else "Nothing wrong was found at the broker. No store of keys was looked at: give --url.",
    )
    if fault is ExitCode.OK and any(each.level in (Level.WARNING, Level.ERROR) for each in findings):
        fault = ExitCode.ATTENTION
    raise typer.Exit(fault)


def _declared(target: str | None) -> tuple[list[str], list[str]]:
    """The subjects of a module's consumers, and the names of checkers that it leaves to `--checker`."""
    if target is None:
        return [], ["NAME"]
    with closing(registry_at(target)) as registry:
        consumers = registry.consumers.values()
        return [*dict.fromkeys(each.subject for each in consumers)], _unknown_checkers(consumers)


def _unknown_checkers(consumers: Iterable[AnyConsumer]) -> list[str]:
    names: list[str] = []
    for consumer in consumers:
        try:
            consumer.checker  # noqa: B018 - it may be missing
        except UnknownCheckerError as error:
            names.append(error.name or "NAME")
        except ConfigurationError:
            continue  # the command that is advised explains it
    return [*dict.fromkeys(names)]


def _checker_options(names: Collection[str], url: str | None, table: str | None, prefix: str | None) -> str:
    """The options of a command that has consumers and the store that was given here."""
    where = "URL" if url is None or len(names) > 1 else _checker_word(url, table, prefix)
    return " ".join(f"--checker {quote(name)}={where}" for name in names)


def _checker_word(url: str, table: str | None, prefix: str | None) -> str:
    """The store of `--url`, `--table` and `--prefix` as the URL of a checker, without a password."""
    more = urlencode({**tables(url, table), **({} if prefix is None else {"prefix": prefix})})
    word = url_word(url)
    if word.startswith("env:"):
        word = f"{scheme_of(url).removed}{word}"
        return f"{word} (in the variable the URL with {'&' if '?' in url else '?'}{more})" if more else word
    return quote(f"{url}{'&' if '?' in url else '?'}{more}") if more else word


def _filled(findings: Iterable[Finding], given: Mapping[str, str | None]) -> Iterator[Finding]:
    """The findings, with what the user gave in the place of these words, so that their commands can be pasted."""
    for finding in findings:
        hint = finding.hint
        for word, known in given.items():
            hint = hint if known is None else hint.replace(f" {word}", f" {known}" if known else "")
        yield replace(finding, hint=hint)


def _look(
    checker: AbstractIdempotentChecker,
    horizon_s: float | None,
    url: str,
    table: str | None,
    prefix: str | None,
) -> Iterator[Finding]:
    findings = checker.findings()
    yield from findings
    if not any(finding.final for finding in findings):
        admin = checker.admin()
        yield from _retention(admin, horizon_s)
        yield from _waiting(admin, checker.command_options)
        yield from _paused(checker)
        sql = scheme_of(url).kind is StoreKind.SQL
        yield from _clock(admin, table or DEFAULT_TABLE, checker.command_options, sql=sql)
    if scheme_of(url).kind is StoreKind.SQL:
        with closing(outbox_at(url, table)) as outbox:
            yield from OutboxAdmin(outbox).findings()
    # An application without Spark need have neither its tables nor a right to them.
    with suppress(ConfigurationError, StoreError):
        yield from _runs(url, table, prefix)


def _runs(url: str, table: str | None, prefix: str | None) -> Iterator[Finding]:
    """Spark's runs whose lease has ended, the oldest first; other runs wait for the keys of PREPARED ones."""
    options = runs.options_of(url, table, prefix)
    with open_ledger(ledger_of(url, table, prefix)) as ledger:
        unfinished = [*ledger.store.listed({RunState.OPEN, RunState.PREPARED})]
    waiting = sorted((row for row in unfinished if row.lapsed), key=lambda row: row.lease_until_us)
    for state, what, otherwise in (
        (
            RunState.OPEN,
            "OPEN, so the next run that meets its keys aborts it",
            "begin it again with this run_id; or leave it, if its input comes in another run",
        ),
        (
            RunState.PREPARED,
            "PREPARED, so it may have published, and other runs wait for its keys",
            "begin it again with this run_id: it publishes what is staged, and repeats no effect",
        ),
    ):
        if found := [row for row in waiting if row.state is state]:
            names = ", ".join(f"{row.ref.consumer} {row.ref.run_id!r}" for row in found[:_SHOWN_RUNS])
            more = f" and {len(found) - _SHOWN_RUNS} more" if len(found) > _SHOWN_RUNS else ""
            first = found[0].ref
            one = f"idempotent runs show {quote(first.run_id)} --consumer {quote(first.consumer)} {options}"
            all_ = f"idempotent runs list --state {state.name.lower()} {options}"
            yield Finding(
                Level.WARNING,
                f"{len(found)} of Spark's runs: nobody has renewed the lease for up to "
                f"{in_words(-found[0].lease_rest_s)}, so the driver is gone or stands still ({what}): {names}{more}",
                f"{otherwise}. What else helps: {one if len(found) == 1 else all_}",
            )
    if unfinished and not waiting:
        yield Finding(
            Level.OK, f"no run of Spark has a lease that has ended; with a living one: {len(unfinished)}"
        )


def _retention(admin: KeyAdmin, horizon_s: float | None) -> Iterator[Finding]:
    """How long keys are kept: from the claim (the fence of a first claim is its time) to the expiry."""
    shortest: dict[str, float] = {}
    for record in admin.list(KeyFilter(), limit=_SAMPLE):
        if record.status is KeyStatus.DEAD or record.expires_at_us is None:
            continue  # kept for a person
        consumer = consumer_in(record.text)
        kept_s = (record.expires_at_us - record.fence) / 1_000_000
        shortest[consumer] = min(kept_s, shortest.get(consumer, kept_s))
    if horizon_s is None:
        if shortest:
            yield Finding(
                Level.OK,
                f"keys are kept for {in_words(min(shortest.values()))} or more; "
                "--redelivery-horizon checks whether that is enough",
            )
        return
    if not shortest:
        yield Finding(Level.OK, "no keys yet, so their retention is unknown")
    for consumer, kept_s in sorted(shortest.items()):
        # The claim's two times come from one statement, but not always from one reading of the clock.
        if kept_s + 1 >= horizon_s:
            yield Finding(Level.OK, f"{consumer}: keys are kept for {in_words(kept_s)}")
        else:
            yield Finding(
                Level.ERROR,
                f"{consumer}: keys are kept for {in_words(kept_s)}, but messages can come again for "
                f"{in_words(horizon_s)}",
                f"give its checker retention_s={horizon_s:.0f} or more",
            )


def _waiting(admin: KeyAdmin, options: str) -> Iterator[Finding]:
    waiting = numbers(admin.stats())
    dead, lapsed = waiting["dead"], waiting["lapsed"]
    if dead:
        yield Finding(
            Level.WARNING,
            f"dead, waiting for a person: {count(dead, 'key')}; their messages are dead letters, if a broker "
            "delivered them",
            f"idempotent keys list --status dead {options}",
        )
    if lapsed:
        yield Finding(
            Level.WARNING,
            f"in progress, but their lease has ended: {count(lapsed, 'key')}; the next delivery decides",
            f"idempotent keys list --lapsed {options}",
        )
    if not dead and not lapsed:
        yield Finding(Level.OK, "no key waits for a person")
    if not dead:
        # Their keys are gone once a person has reopened them.
        yield Finding(
            Level.ADVICE,
            "dead letters of brokers are not counted by the store: a message whose key was reopened stays one",
            f"idempotent redrive returns them; look for them first: {DEAD_LIST}",
        )


def _paused(checker: AbstractIdempotentChecker) -> Iterator[Finding]:
    for pause in pauses_in(checker):
        resume = f"idempotent resume {quote(pause.consumer)} {checker.command_options}"
        yield Finding(Level.ADVICE, f"{pause.consumer} is paused {pause_in_words(pause)}", resume)


def _clock(admin: KeyAdmin, table: str, options: str, *, sql: bool) -> Iterator[Finding]:
    """Whether claims are later than now: the store's clock has gone back, and their leases last longer by that."""
    working = frozenset(status for status in KeyStatus if status.in_progress)
    records = [*admin.list(KeyFilter(statuses=working), limit=_SAMPLE)]
    ahead = [each for each in records if each.update_at_us > each.now_us + AHEAD_US]
    if not ahead:
        return
    back_us = max(each.update_at_us - each.now_us for each in ahead)
    last_us = max((each.lease_until_us or 0) - each.now_us for each in ahead)
    now_us = max(each.now_us for each in ahead)
    held = next((each for each in ahead if each.held), None)
    reopen = f", or, if it may not: idempotent keys reopen {quote(held.text)} {options}" if held else ""
    # A worker that lives renews its lease; without workers nobody needs it.
    remedy = (
        f", or stop the workers and type in SQL: UPDATE {table} SET lease_until = 0"
        f" WHERE status < {KeyStatus.DONE:d} AND update_at > {now_us}"
        if sql
        else ""
    )
    yield Finding(
        Level.WARNING,
        f"the store's clock has gone back, by {in_words(back_us / 1e6)} or more: {count(len(ahead), 'key')} in "
        "progress; a message whose process died, or that waits for its backoff, waits for up to "
        f"{in_words(last_us / 1e6)}",
        f"wait{reopen}{remedy}",
    )


def _show(findings: list[Finding], *, as_json: bool, healthy: str) -> None:
    if as_json:
        for finding in findings:
            emit(level=finding.level.value, what=mask(finding.what), hint=mask(finding.hint))
        return
    for level, mark in _MARKS.items():
        for finding in (each for each in findings if each.level is level):
            say(f"{mark} {plain(finding.what)}")
            if finding.hint:
                say(f"    [dim]→[/dim] {plain(finding.hint)}")
    levels = [finding.level for finding in findings]
    errors, warnings = levels.count(Level.ERROR), levels.count(Level.WARNING)
    if errors or warnings:
        say(f"[bold]{count(errors, 'error')}, {count(warnings, 'warning')}.[/bold]")
    else:
        say(f"[bold green]{healthy}[/bold green]")
