"""The process that deletes what has expired."""

from __future__ import annotations

import json
import time

import typer

from idempotent.checkers import SqlChecker


def main(url: str, table: str) -> None:
    """Say when it is ready, and then how much that was."""
    checker = SqlChecker(url, table=table)
    checker.store.connections.run(lambda _: None)
    typer.echo("ready")
    began = time.perf_counter()
    deleted = checker.garbage_collect()
    typer.echo(json.dumps({"deleted": deleted, "seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    typer.run(main)
