"""`make faults`: every fault of the catalogue in a scratch copy, and whether its test notices."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from tests.faults.catalogue import FAULTS, Fault
from tests.support.services import PrivateMariaDb, PrivateRedis

ROOT: Final = Path(__file__).parent.parent.parent
_FAILED, _LONGEST_S = 1, 240


def main(
    only: Annotated[str, typer.Option(help="Faults whose name contains this.")] = "",
) -> None:
    """Make each mistake in turn, and run the test that has to fail for it. Survivors end it with 1."""
    console = Console(highlight=False)
    chosen = [fault for fault in FAULTS if only.lower() in fault.name.lower()]
    survivors: list[Fault] = []
    began = time.monotonic()
    with _scratch() as copy, _servers(console) as environment:
        for number, fault in enumerate(chosen, 1):
            with console.status(f"{number} of {len(chosen)}: {fault.name}"):
                verdict = _noticed(copy, fault, environment)
            if verdict:
                survivors.append(fault)
            mark = f"[red]{verdict}[/red]" if verdict else "[green]noticed[/green]"
            console.print(f"{number:3} {mark} {fault.name} [dim]{fault.tests}[/dim]", soft_wrap=True)
    console.print(
        f"\n{len(chosen)} faults, {len(survivors)} survivors, {time.monotonic() - began:.0f} s", style="bold"
    )
    raise typer.Exit(1 if survivors else 0)


@contextmanager
def _scratch() -> Iterator[Path]:
    """A copy of the repository's files."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    with tempfile.TemporaryDirectory(prefix="idem-faults-") as folder:
        copy = Path(folder)
        for name in listed.stdout.splitlines():
            if (ROOT / name).exists():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
        yield copy


@contextmanager
def _servers(console: Console) -> Iterator[dict[str, str]]:
    """Servers for all runs, where most tests need one, as the environment that names them."""
    with ExitStack() as stack:
        started = {}
        for variable, server in (
            ("IDEMPOTENT_TEST_MYSQL_URL", PrivateMariaDb()),
            ("IDEMPOTENT_TEST_REDIS_URL", PrivateRedis()),
        ):
            stack.callback(server.close)
            with console.status(f"Starting {server.name}"):
                server.start()
            started[variable] = server.url
        yield started


def _noticed(copy: Path, fault: Fault, environment: dict[str, str]) -> str | None:
    """What went wrong; None: the test failed, as it has to."""
    path = copy / fault.file
    before = path.read_text()
    if before.count(fault.right) != 1:
        return f"NOT MADE: its text stands {before.count(fault.right)} times in {fault.file}"
    path.write_text(before.replace(fault.right, fault.wrong))
    try:
        code = _pytest(copy, shlex.split(fault.tests), environment)
    finally:
        path.write_text(before)
    if code == _FAILED:
        return None
    return "SURVIVED" if code == 0 else f"NO VERDICT: pytest ended with {code}"


def _pytest(copy: Path, tests: Sequence[str], environment: dict[str, str]) -> int:
    # The copy comes before what is installed.
    paths = os.pathsep.join([str(copy), os.environ.get("PYTHONPATH", "")])
    try:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "0", *tests],
            cwd=copy,
            env={**os.environ, **environment, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_LONGEST_S,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return _FAILED  # a hang is noticed too


if __name__ == "__main__":
    typer.run(main)
