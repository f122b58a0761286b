"""`make torture`: every broker with every checker, on servers of its own, and the figures in build/torture/.

`python -m tests.torture pairs --broker kafka --checker redis --seconds 60 --seed 7` for one pair;
`python -m tests.torture servers --broker URL --checker URL` for servers of yours.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from examples.demo.demonstration import demonstrate, program
from idempotent.errors import ConfigurationError, IdempotentError
from tests.support.pairs import BROKERS, CHECKERS, PAIRS, is_covered, started
from tests.support.services import PrivateServer
from tests.support.services.small_disk import on_a_small_disk
from tests.torture import Settings, TortureReport
from tests.torture.command import over_servers, torture
from tests.torture.examination.report import write_figures
from tests.torture.servers import servers_of

FIGURES = Path(__file__).parents[2] / "build" / "torture"
# Starting, and processing what is left, for each pair.
AROUND_S = 20.0
SHORTEST_S = 10.0


class Reports:
    """Of several runs."""

    def __init__(self, reports: list[TortureReport]) -> None:
        self._reports = reports

    @property
    def kept_promise(self) -> bool:
        return all(report.kept_promise for report in self._reports)

    def as_json(self) -> dict[str, object]:
        return {"ok": self.kept_promise, "runs": [report.as_json() for report in self._reports]}


def pairs(
    broker: Annotated[str, typer.Option(help=f"One of {', '.join(BROKERS)}; none: each.")] = "",
    checker: Annotated[str, typer.Option(help=f"One of {', '.join(CHECKERS)}; none: each.")] = "",
    seconds: Annotated[float, typer.Option(help="In all.")] = 3600.0,
    seed: int | None = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep journals and logs.")] = False,
) -> None:
    """Torture the pairs, one after the other."""
    chosen = [pair for pair in PAIRS if broker in ("", pair[0]) and checker in ("", pair[1])]
    if not chosen:
        known = "; ".join(f"{broker} {checker}" for broker, checker in PAIRS)
        raise ConfigurationError(f"no such pair: {broker} {checker}. Known: {known}")
    share_s = max(seconds / len(chosen) - AROUND_S, SHORTEST_S)
    if share_s == SHORTEST_S and not checker:
        chosen = [pair for pair in chosen if not is_covered(*pair)]
    first_seed = secrets.randbelow(1_000_000) if seed is None else seed
    command = f"make torture SECONDS={seconds:g} SEED={first_seed}"
    command += f" BROKER={broker}" * bool(broker) + f" CHECKER={checker}" * bool(checker)

    def run(console: Console) -> Reports:
        reports: list[TortureReport] = []
        for number, (one, other) in enumerate(chosen, start=1):
            console.rule(f"{number} of {len(chosen)}: {one}, {other}")
            settings = Settings(seed=first_seed, seconds=share_s, outbox=CHECKERS[other].outbox)
            reports.append(tortured_pair(console, one, other, settings, keep=keep))
            # Each time, because an hour is long.
            write_figures(FIGURES, reports, command)
        console.print(
            f"{sum(report.kept_promise for report in reports)} of {len(reports)} runs kept the promise"
        )
        console.print(f"Figures: {FIGURES / 'figures.md'}", soft_wrap=True)
        return Reports(reports)

    demonstrate(run, as_json=as_json)


def tortured_pair(
    console: Console, broker: str, checker: str, settings: Settings, *, keep: bool
) -> TortureReport:
    """One of them."""
    with ExitStack() as stack:
        kind = CHECKERS[checker]
        store = None if kind.store is None else kind.store(*kind.options)
        # Redis has its keys in memory.
        small = store is not None and checker != "redis" and stack.enter_context(on_a_small_disk(store))
        server = started(stack, console, BROKERS[broker]())
        if store is not None:
            started(stack, console, store)
        try:
            return over_servers(
                console, settings, servers_of(server, store, checker, small_disk=small), keep=keep
            )
        except IdempotentError:
            _show_logs(console, server, *([] if store is None else [store]))
            raise


def _show_logs(console: Console, *servers: PrivateServer) -> None:
    """Their ends: a server's folder is removed with the server."""
    for server in servers:
        console.rule(f"{server.name}: {server.state}")
        console.print(server.log_tail(60), soft_wrap=True, markup=False, highlight=False)


app = program(
    "python -m tests.torture",
    {
        pairs: ("pairs --seconds 3600", "pairs --broker kafka --checker redis --seconds 60 --seed 7"),
        torture: (
            "servers --broker amqp://localhost --checker transactional+mysql+pymysql://user:password@host/test",
            "servers --broker kafka://localhost:9092 --checker redis://localhost --seconds 600 --seed 7",
            "servers --broker stomp://localhost --checker $URL --restart-broker 'docker restart -t 0 activemq'",
        ),
    },
)

if __name__ == "__main__":
    app(prog_name="python -m tests.torture")
