"""How many of our own frames lie between a consumer and its store: a message pays for each of them."""

import sys

import pytest

from idempotent import Message, Registry
from idempotent.checkers import MemoryChecker, SqlChecker, TransactionalSqlChecker
from idempotent.stores.sql import cursor

MEMORY = (MemoryChecker._claim, MemoryChecker._complete)
STATEMENTS = (cursor.execute, cursor.insert_id, cursor.query)


def own_frames(frame) -> int:
    count = 0
    while frame is not None:
        count += frame.f_globals.get("__name__", "").startswith("idempotent.")
        frame = frame.f_back
    return count


def frames_to_the_store(checker, functions) -> list[int]:
    """How many own frames each call of these functions has, the function included, for one message."""
    consumer = Registry().consumer("orders", checker=checker)(lambda _: None)
    consumer.process(Message("orders", id="warm"))
    codes = {function.__code__ for function in functions}
    found = []

    def profile(frame, event, _argument):
        if event == "call" and frame.f_code in codes:
            found.append(own_frames(frame))

    sys.setprofile(profile)
    try:
        consumer.process(Message("orders", id="1"))
    finally:
        sys.setprofile(None)
    return found


def test_memory_is_four_frames_away_and_its_completion_five():
    assert frames_to_the_store(MemoryChecker(), MEMORY) == [4, 5]


@pytest.mark.parametrize(("kind", "claim", "most"), [(SqlChecker, 9, 11), (TransactionalSqlChecker, 12, 14)])
def test_the_first_statement_is_no_deeper_than_before_the_layers_were_packages(tmp_path, kind, claim, most):
    """11 for a leased claim and 14 for a transactional one, counted on the flat modules."""
    from idempotent.migrations import upgrade

    url = f"sqlite:///{tmp_path}/store.db"
    upgrade(url)
    frames = frames_to_the_store(kind(url), STATEMENTS)
    assert frames[0] <= claim <= most
    assert max(frames) <= most
