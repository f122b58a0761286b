"""An interrupt between the claim and the handler leaves no claim behind that this process renews."""

import pymysql.connections
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Message, Outcome, Registry
from idempotent.checkers import MemoryChecker, TransactionalSqlChecker
from idempotent.observe import Observer


class Interrupting(Observer):
    """Stands in for a Ctrl-C that arrives as soon as the claim is answered."""

    def __init__(self):
        self.on = True

    def claimed(self, consumer, message, request, answer):
        if self.on:
            raise KeyboardInterrupt


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"]], ids=["single", "group"])
def test_what_was_claimed_is_not_renewed_after_an_interrupt(names):
    observer, now = Interrupting(), [1000.0]
    registry, checker = Registry([observer]), MemoryChecker(lease_s=30.0, clock=lambda: now[0])
    consumer = registry.consumer("orders", checker=checker)(lambda _: None)
    messages = [Message("orders", id=name) for name in names]
    with pytest.raises(KeyboardInterrupt):
        consumer.process_many(messages)
    assert not checker.protocol._keeper._held
    observer.on = False
    now[0] += 31.0
    assert {result.outcome for result in consumer.process_many(messages)} == {Outcome.PROCESSED}


@pytest.mark.parametrize("strict", [False, True])
def test_an_interrupted_statement_does_not_poison_the_next_units(mysql_url, request, monkeypatch, strict):
    """PyMySQL leaves the answer in the connection, where the next statement would read it."""
    from tests.support.stores import open_store

    with_store = open_store("mysql", request)
    store = next(with_store)
    checker = store.transactional(strict=strict)
    read, cuts = pymysql.connections.Connection._read_packet, []

    def interrupted(self, *arguments, **options):
        if cuts and cuts[0] == 0:
            cuts.clear()
            raise KeyboardInterrupt
        if cuts:
            cuts[0] -= 1
        return read(self, *arguments, **options)

    monkeypatch.setattr(pymysql.connections.Connection, "_read_packet", interrupted)

    @Registry().consumer("orders", checker=checker)
    def handle(message: Message, session: Session) -> None:
        session.execute(sa.text("SELECT 1"))

    assert handle.process(Message("orders", id="warm")).outcome is Outcome.PROCESSED
    interrupts = 0
    for nth in range(12):
        cuts[:] = [nth]
        try:
            handle.process(Message("orders", id=f"cut {nth}"))
        except KeyboardInterrupt:
            interrupts += 1
        cuts.clear()
        for number in range(3):
            assert handle.process(Message("orders", id=f"{nth} {number}")).outcome is Outcome.PROCESSED
    assert interrupts > 3
    assert isinstance(checker, TransactionalSqlChecker)
    next(with_store, None)
