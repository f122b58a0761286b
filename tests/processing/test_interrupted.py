"""An interrupt between the claim and the handler leaves no claim behind that this process renews."""

import asyncio
import dis
import sys
from contextlib import contextmanager, nullcontext, suppress
from contextvars import copy_context
from functools import partial

import pymysql.connections
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Backoff, Message, Outcome, Registry
from idempotent.checkers import MemoryChecker, TransactionalSqlChecker
from idempotent.observe import Observer
from idempotent.processing.calling import RETURNED, inside_handler
from idempotent.processing.steps import _under_way
from idempotent.processing.turns import turns
from tests.support.births import unwarned
from tests.support.stores import ASYNC, open_store


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


BURIED = {Outcome.FAILED, Outcome.DEAD}
HAPPENED = {Outcome.PROCESSED, Outcome.DUPLICATE}


class SignalError(Exception):
    """What a handler of a signal raises, as those of time limits do."""


def waits_for_another(frame):
    """Whether a generator that goes on only hands on what it is sent, by the operand of its RESUME."""
    resume, operand = frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 2]
    return dis.opname[resume].startswith("RESUME") and operand & 3 > 1


def interrupt_at(nth, call, kind, *, within=("idempotent.",), armed=lambda: True):
    """Call a function, and raise where Python looks for signals in it for the nth time. Whether it came so far.

    Python looks when a function of Python begins or a generator goes on, and behind a call of a function in C. Not in a
    generator that waits in `yield from` for another one, which goes on.
    """
    left = [nth]

    def look(frame, event, _argument):
        ours = frame.f_globals.get("__name__", "").startswith(within)
        looks = event == "c_return" or (event == "call" and not waits_for_another(frame))
        if ours and looks and left[0] >= 0 and armed():
            left[0] -= 1
            if left[0] < 0:
                sys.setprofile(None)
                raise kind

    sys.setprofile(look)
    try:
        with suppress(kind):
            call()
    finally:
        sys.setprofile(None)
    return left[0] < 0


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # generators may ignore GeneratorExit
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("names", "kind", "batch"),
    [
        pytest.param(["a"], KeyboardInterrupt, False, id="single, interrupt"),
        pytest.param(["a"], SignalError, False, id="single, exception"),
        pytest.param(["a", "b", "c"], KeyboardInterrupt, False, id="group, interrupt"),
        pytest.param(["a", "b", "c"], SignalError, True, id="batch, exception"),
    ],
)
def test_an_interrupt_anywhere_leaves_nothing_behind(names, kind, batch, is_async):
    """No claim that is renewed, and no message that seems to run: its claim is no other's, nothing waits for it."""
    now = [1000.0]
    checker = MemoryChecker(lease_s=30.0, clock=lambda: now[0])
    make = Registry().consumer("orders", checker=checker, backoff=Backoff(0), batch=batch)
    context = copy_context()

    if is_async:

        @make
        async def handle(_):
            pass

        runner = asyncio.Runner()
        process_many = lambda messages: runner.run(handle.process_many(messages), context=context)  # noqa: E731
    else:
        handle = make(lambda _: None)
        process_many = partial(context.run, handle.process_many)
        runner = nullcontext()
    handle.binding.calls.watch()
    with runner:
        process_many([Message("orders", id=f"warm {name}") for name in names])
        nth = 0
        while True:
            messages = [Message("orders", id=f"{name} {nth}") for name in names]
            if not interrupt_at(nth, partial(process_many, messages), kind):
                break
            assert len(checker.protocol._keeper._held) == checker.protocol.unrecorded, nth
            assert not context.run(inside_handler), nth
            assert turns.taken is None, nth
            assert not _under_way, nth
            assert set(handle.binding.calls.began.values()) <= {RETURNED}, nth
            now[0] += 31.0
            results = process_many(messages)
            assert not checker.protocol._keeper._held, nth
            assert {result.outcome for result in results} <= {Outcome.PROCESSED, Outcome.DUPLICATE}, nth
            nth += 1
    assert nth > 50


class Limit(BaseException):
    """As a framework raises in the thread of a task that takes too long. No Exception, so nothing catches it."""


class Limited(MemoryChecker):
    """The first completion is struck by a time limit, before the store has recorded it, or after."""

    def __init__(self, *, after: bool) -> None:
        super().__init__(lease_s=30.0)
        self.after = after
        self.struck = False

    def _complete(self, completion):
        return self._complete_many([completion])[0]

    def _complete_many(self, completions):
        if not self.struck and not self.after:
            self.struck = True
            raise Limit
        owned = [super(Limited, self)._complete(each) for each in completions]
        if not self.struck:
            self.struck = True
            raise Limit
        return owned


@pytest.mark.parametrize("after", [False, True], ids=["not recorded", "recorded"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"]], ids=["single", "group"])
def test_what_interrupts_a_completion_repeats_no_effect(names, is_async, after):
    checker = Limited(after=after)
    ran = []
    make = Registry().consumer("orders", checker=checker)
    messages = [Message("orders", id=name) for name in names]
    if is_async:

        @make
        async def handle(message):
            ran.append(message.id)

        process = lambda: asyncio.run(handle.process_many(messages))  # noqa: E731
    else:
        handle = make(lambda message: ran.append(message.id))
        process = partial(handle.process_many, messages)
    with pytest.raises(Limit):
        process()
    assert {result.outcome for result in process()} == {Outcome.DUPLICATE}
    assert ran == names
    assert not checker.protocol._keeper._held


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a cursor that is freed
@pytest.mark.parametrize("names", [["a"], ["a", "b"]], ids=["single", "group"])
@pytest.mark.parametrize("kind", ["sqlite", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ASYNC)])
def test_an_exception_while_the_effect_commits_is_no_failure_of_the_message(kind, names, request):
    """Wherever it comes after the handler: what has committed is processed, or unknown, and never dead."""
    # The exception also strikes within SQLAlchemy and the driver, where a connection may be left behind.
    with unwarned(), contextmanager(open_store)(kind, request) as store:
        returned: list[str] = []

        @Registry().consumer("orders", checker=store.transactional(), max_attempts=1)
        def handle(message: Message, session: Session) -> None:
            session.execute(store.effects.insert().values(id=message.id))
            returned.append(message.id)

        def messages_of(nth):
            return [Message("orders", id=f"{name} {nth}") for name in names]

        def process(nth, into):
            into.update(
                zip([m.id for m in messages_of(nth)], handle.process_many(messages_of(nth)), strict=True)
            )

        within = ("idempotent.", "sqlalchemy.", "psycopg.", "pymysql.")
        handle.process_many(messages_of("warm"))
        nth = 0
        while True:
            first, then, last = {}, {}, messages_of(nth)[-1].id
            call, armed = partial(process, nth, first), partial(returned.__contains__, last)
            if not interrupt_at(nth, call, SignalError, within=within, armed=armed):
                break
            booked = store.booked()
            process(nth, then)
            for each, result in then.items():
                before = first[each].outcome if each in first else None
                assert not (before in BURIED and booked.get(each)), (nth, each, first[each])
                assert before in BURIED or result.outcome in HAPPENED, (nth, each, result)
                assert before not in HAPPENED or booked[each] == 1, (nth, each)
            nth += 1
        assert set(store.booked().values()) == {1}
        assert nth > 100


def test_an_interrupted_garbage_collection_keeps_no_lock():
    checker = MemoryChecker()
    nth = 0
    while interrupt_at(nth, checker.garbage_collect_alone, KeyboardInterrupt):
        assert len(checker.protocol._keeper._held) == checker.protocol.unrecorded, nth
        nth += 1
    assert nth > 10


@pytest.mark.parametrize("strict", [False, True])
def test_an_interrupted_statement_does_not_poison_the_next_units(mysql_url, request, monkeypatch, strict):
    """PyMySQL leaves the answer in the connection, where the next statement would read it."""
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
