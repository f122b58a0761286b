"""A worker: `python -m tests.soak.child BROKER CHECKER SUBJECT`, until SIGTERM."""

from __future__ import annotations

import typer
from sqlalchemy import create_engine, insert
from sqlalchemy.orm import Session

from examples.demo.stage.places import place_at
from idempotent import Message, Registry, Worker
from idempotent.checkers import TransactionalSqlChecker, checker_from_url
from idempotent.cli.terminal.logs import log_to_stderr
from tests.bench.checkers import effects

BATCH = 50
# Keys come and go in minutes, so that their number ends somewhere within the hour.
RETENTION_S = 120.0
GC_EVERY_S = 15.0


def main(broker: str, checker_url: str, subject: str) -> None:
    """Consume until a signal comes."""
    log_to_stderr("warning")
    registry = Registry()
    checker = checker_from_url(checker_url, retention_s=RETENTION_S)
    decorate = registry.consumer(subject, checker=checker)
    if isinstance(checker, TransactionalSqlChecker):

        @decorate
        def in_its_transaction(message: Message, session: Session) -> None:
            session.execute(insert(effects), _row(message))

    else:
        engine = create_engine(checker_url)

        @decorate
        def by_itself(message: Message) -> None:
            with engine.begin() as connection:
                connection.execute(insert(effects), _row(message))

    adapter = place_at(broker, subject, BATCH).adapter()
    Worker(registry, adapter, concurrency=2, batch_size=BATCH, gc_interval_s=GC_EVERY_S).run()
    registry.close()


def _row(message: Message) -> dict[str, object]:
    return {"message": message.id, "amount": 1}


if __name__ == "__main__":
    typer.run(main)
