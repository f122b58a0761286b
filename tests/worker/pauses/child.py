"""A worker process with two consumers that note what they run in a table."""

import logging
import sys
import time

import sqlalchemy as sa

from idempotent import Message, Registry, Worker
from idempotent.checkers import SqlChecker
from tests.adapters.conformance_child import adapter_at

RUNS = sa.Table(
    "paused_runs", sa.MetaData(), sa.Column("subject", sa.String(100)), sa.Column("id", sa.String(100))
)
SLOW_S = 0.2


def work(url: str, database: str, slow: str, fast: str, health_file: str) -> None:
    registry, engine = Registry(), sa.create_engine(database)
    checker = SqlChecker(database)

    def note(message: Message) -> None:
        with engine.begin() as connection:
            connection.execute(RUNS.insert().values(subject=message.subject, id=message.id))

    @registry.consumer(slow, checker=checker)
    def slowly(message: Message) -> None:
        note(message)
        time.sleep(SLOW_S)

    registry.consumer(fast, checker=checker)(note)
    Worker(registry, adapter_at(url, batched=False), 2, health_file=health_file).run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    work(*sys.argv[1:])
