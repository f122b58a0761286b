"""A handler that forks: its child does nothing with the message, the claim and the connection of its parent."""

import os
import signal
import sys
from contextlib import contextmanager

import psutil
import pytest
from sqlalchemy.orm import Session

from idempotent import Outcome, Registry
from idempotent.testing.adapter_contract import until
from tests.processing.forking_child import die_and_leave_a_child
from tests.processing.shop import messages, outcomes
from tests.support.forked import Forked
from tests.support.stores import open_store


def raises():
    raise ValueError("in the child")


LEAVES = {"returns": (lambda: None, 0), "raises": (raises, 1), "exits": (lambda: sys.exit(7), 7)}


@pytest.mark.sample(4)
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("leaves", LEAVES)
def test_a_child_that_leaves_the_handler_ends_and_its_parent_goes_on(shop, leaves, batch):
    leave, code = LEAVES[leaves]
    consumer = forking_consumer(shop, leave, batch=batch)
    results = consumer.process_many(messages("1", "2"))
    assert outcomes(results) == ["processed"] * 2
    assert set(shop.calls[0]) == {code}
    # Not released by the child: the key is done, and the connection still works.
    assert outcomes(consumer.process_many(messages("1", "2", "3"))) == ["duplicate", "duplicate", "processed"]
    if shop.transactional:
        assert shop.effects() == {"1": 1, "2": 1, "3": 1}


def test_a_child_that_leaves_the_handler_of_one_message_ends(shop):
    consumer = forking_consumer(shop, raises, batch=False)
    assert consumer.process(messages("1")[0]).outcome is Outcome.PROCESSED
    assert consumer.process(messages("1")[0]).outcome is Outcome.DUPLICATE


def forking_consumer(shop, leave, *, batch):
    """A consumer whose handler notes the exit codes of its children in `shop.calls[0]`."""
    shop.calls.append([])

    def handle(given):
        child = os.fork()
        if not child:
            signal.alarm(30)  # ends it, should the library not
            leave()
            return
        shop.calls[0].append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    def handle_with_session(given, session: Session):
        for message in given if batch else [given]:
            session.execute(shop.store.effects.insert().values(id=message.id))
        handle(given)

    make = Registry().consumer("orders", checker=shop.checker, batch=batch)
    return shop.decorated(make, handle_with_session if shop.transactional else handle)


@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_a_child_that_outlives_its_killed_parent_holds_no_transaction(kind, request, tmp_path):
    note = tmp_path / "child"
    with contextmanager(open_store)(kind, request) as store:
        parent = Forked(die_and_leave_a_child, store.url, store.table, str(note), folder=tmp_path)
        assert parent.wait(60) == -signal.SIGKILL
        child = psutil.Process(int(note.read_text()))
        try:
            consumer = Registry().consumer("orders", checker=store.transactional())(lambda _: None)
            until(
                lambda: consumer.process(*messages("1")).outcome is Outcome.PROCESSED, "the server's rollback"
            )
            assert child.is_running()
        finally:
            child.kill()
