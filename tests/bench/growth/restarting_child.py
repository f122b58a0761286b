"""The worker that is killed, and the next one: a line for each settled message."""

from __future__ import annotations

import os

import typer

from idempotent import Message, Registry, Result, Worker
from idempotent.adapters import adapter_from_url
from idempotent.checkers import SqlChecker


def main(broker: str, store: str, table: str, subject: str) -> None:
    """Work until it is killed."""
    registry = Registry()

    @registry.consumer(subject, checker=SqlChecker(store, table=table))
    def handle(_: Message) -> None:
        pass

    def settled(_: Message, result: Result) -> None:
        os.write(1, f"{result.outcome}\n".encode())

    Worker(registry, adapter_from_url(broker), gc_interval_s=None, on_result=settled).run()


if __name__ == "__main__":
    typer.run(main)
