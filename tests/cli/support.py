"""What the command line's tests share."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner

from idempotent.claims import ClaimRequest, Failure
from idempotent.cli.root import app
from idempotent.keys import Key, KeySpace
from tests.support.stores import Store

IN_OWN_HISTORY = (
    "in an Alembic history of your own, a new migration that calls create_dedup_table(table={!r}) of "
    "idempotent.migrations"
)
BILLING = KeySpace("orders.paid", "billing")
MAIL = KeySpace("orders.paid", "mail")
# Short enough to wait for, long enough that a slow machine does not lose a live one: those get days.
LAPSE_S = 0.05
DAYS_S = 3 * 86400.0


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def line(self) -> dict[str, Any]:
        (line,) = self.lines
        return line


@dataclass(frozen=True)
class Cli:
    runner: CliRunner

    def __call__(self, *words: str, input: str | None = None) -> Answer:
        result = self.runner.invoke(app, list(words), input=input, prog_name="idempotent")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Answer(result.exit_code, result.stdout, result.stderr)


def at(store: Store) -> list[str]:
    """The options that name a store."""
    name = ["--prefix", f"{store.table}:"] if store.kind == "redis" else ["--table", store.table]
    return ["--url", store.url, *name]


def done(store: Store, key: Key, *, result: bytes | None = None, retention_s: float = DAYS_S) -> None:
    checker = store.leased(retention_s=retention_s)
    claim = checker.protocol.claim(ClaimRequest(key)).claim
    assert claim is not None
    assert checker.protocol.complete(claim, result)


def dead(store: Store, key: Key, error: str = "ValueError: no such customer") -> None:
    checker = store.leased()
    claim = checker.protocol.claim(ClaimRequest(key)).claim
    assert claim is not None
    assert checker.protocol.release(claim, Failure(error, max_attempts=5, fatal=True)).dead


def live(store: Store, key: Key, *, lease_s: float | None = DAYS_S) -> None:
    checker = store.leased(lease_s=lease_s)
    claim = checker.protocol.claim(ClaimRequest(key)).claim
    assert claim is not None
    checker.protocol.abandon(claim)


def lapsed(store: Store, key: Key) -> None:
    live(store, key, lease_s=LAPSE_S)
    time.sleep(2 * LAPSE_S)


def fill(store: Store) -> None:
    """One key in each state, and one of another consumer."""
    done(store, BILLING.key("done"), result=b'{"charged":7}')
    dead(store, BILLING.key("dead"))
    live(store, BILLING.key("live"))
    lapsed(store, BILLING.key("lapsed"))
    dead(store, MAIL.key("dead"))
