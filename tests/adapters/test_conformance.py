"""What holds for every broker alike, on real ones.

Long because all of it shares the fixtures that start a broker, and reads as one list.
"""

import asyncio
import random
import signal
import threading
import time

import pytest
import sqlalchemy as sa

from idempotent import Message, Outcome, Registry
from idempotent.checkers import MemoryChecker
from idempotent.claims import ClaimRequest
from idempotent.errors import StoreUnavailableError
from idempotent.migrations import upgrade
from idempotent.observe import Observer
from idempotent.policy import Backoff
from idempotent.testing.adapter_contract import until
from idempotent.testing.crashpoints import CRASH_VARIABLE
from tests.adapters.conformance_child import EFFECTS, GROUP, consume
from tests.adapters.ending import finish, ids, is_killed, numbered
from tests.adapters.places import BROKERS, open_place
from tests.support.forked import Forked
from tests.support.kinds import KINDS, as_async, as_plain
from tests.support.working import run_until

SOON = Backoff(initial_s=0.1, maximum_s=0.1)
KILLS = 4
MANY = 5000


@pytest.fixture(params=BROKERS)
def place(request):
    yield from open_place(request.param, request)


@pytest.fixture(params=KINDS)
def kind(request):
    """Makes a plain handler one of this kind."""
    return request.param


@pytest.fixture
def subject(place):
    return place.subject()


@pytest.fixture
def database(tmp_path):
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    upgrade(url)
    engine = sa.create_engine(url)
    EFFECTS.create(engine)
    engine.dispose()
    return url


@pytest.fixture
def effects(database):
    """`effects()`: the ids that were booked, in a table in which nothing is unique."""
    engine = sa.create_engine(database)

    def read():
        with engine.connect() as connection:
            return sorted(connection.scalars(sa.select(EFFECTS.c.id)))

    yield read
    engine.dispose()


@pytest.fixture
def start(place, subject, database, tmp_path):
    """`start(crash_at)`: a worker in a process of its own."""
    children = []

    def start_(crash_at=None, max_attempts=2, batch_size=1):
        environ = {CRASH_VARIABLE: crash_at} if crash_at else {}
        arguments = (place.url, subject, database, max_attempts, batch_size)
        children.append(Forked(consume, *arguments, folder=tmp_path, environ=environ))
        return children[-1]

    yield start_
    for child in children:
        child.close()


@pytest.mark.parametrize("point", ["before_commit:3", "after_commit:3", "before_ack:3", "after_ack:3"])
def test_a_worker_killed_at_a_step_repeats_no_effect_and_loses_none(place, subject, start, effects, point):
    place.send(*numbered(subject, 10))
    assert is_killed(start(point))
    second = start()
    until(lambda: len(effects()) >= 10, "ten effects")
    finish(place, subject, start, second)
    assert effects() == ids(10)


@pytest.mark.slow
def test_workers_killed_at_random_repeat_no_effect_and_lose_none(place, subject, start, effects):
    place.send(*numbered(subject, MANY))
    for _ in range(KILLS):
        child, before = start(max_attempts=MANY, batch_size=20), len(effects())
        until(lambda before=before: len(effects()) > before, "a beginning")
        time.sleep(random.uniform(0.0, 0.3))
        child.send_signal(signal.SIGKILL)
        assert is_killed(child)
    assert len(effects()) < MANY, "killed too late to mean anything"
    last = start(max_attempts=MANY, batch_size=20)
    deadline = time.monotonic() + 180
    while len(effects()) < MANY:
        assert time.monotonic() < deadline, last.err
        time.sleep(0.1)
    time.sleep(0.3)  # whatever would be repeated has its chance
    finish(place, subject, start, last)
    assert effects() == ids(MANY)


def test_attempts_are_counted_over_processes(place, subject, start):
    place.send(Message(subject, b"poison", id="1"))
    assert is_killed(start("after_ack"))
    child = start()
    until(lambda: place.dead_letters(subject), "a dead letter")
    finish(place, subject, start, child)
    # Perhaps twice, where the first one's acknowledgement was still to come: the same message, by its id.
    for letter in place.dead_letters(subject):
        assert letter.id == "1"
        assert letter.headers["x-idempotent-reason"].endswith("ValueError: poison")


@pytest.mark.slow
def test_a_message_that_kills_its_process_is_a_dead_letter_in_the_end(place, subject, start, effects):
    place.send(Message(subject, b"deadly", id="1"))
    child, deaths = start(), 0
    while not place.dead_letters(subject):
        if child.poll() is not None:
            assert is_killed(child)
            child, deaths = start(), deaths + 1
        # Five are noted; before them comes the first delivery, which is not.
        assert deaths <= 6
        time.sleep(0.1)
    place.send(Message(subject, b"x", id="2"))
    until(lambda: effects() == ["2"], "the message behind it")
    finish(place, subject, start, child)
    assert {letter.id for letter in place.dead_letters(subject)} == {"1"}


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before_ack", "after_ack"])
def test_a_crash_around_a_dead_letter_loses_nothing(place, subject, start, effects, point):
    place.send(Message(subject, b"poison", id="1"))
    assert is_killed(start(point, max_attempts=1))
    place.send(Message(subject, b"x", id="2"))
    child = start(max_attempts=1)
    until(lambda: effects() == ["2"] and place.dead_letters(subject), "the message behind it, and a letter")
    finish(place, subject, start, child)
    # Perhaps twice: the same message, by its id.
    assert {letter.id for letter in place.dead_letters(subject)} == {"1"}
    assert effects() == ["2"]


def test_slow_messages_of_one_queue_leave_threads_and_tasks_to_another(place, subject, kind):
    other, go, fast = place.subject(), threading.Event(), []
    registry = Registry()
    registry.consumer(subject, group=GROUP, checker=MemoryChecker(), concurrency=2)(
        kind(lambda _: go.wait(100))
    )
    registry.consumer(other, group=GROUP, checker=MemoryChecker())(kind(lambda m: fast.append(m.id)))
    place.send(*numbered(subject, 60))
    place.send(*numbered(other, 30))

    def are_done():
        if len(fast) == 30:
            go.set()
        return len(fast) == 30

    summary = run_until(registry, place.adapter(), are_done, concurrency=4)
    assert not summary.abandoned
    assert sorted(fast) == ids(30)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (as_plain, KeyboardInterrupt),
        (as_plain, SystemExit),
        (as_plain, asyncio.CancelledError),  # of a task, it would be a failure
        (as_async, KeyboardInterrupt),
        (as_async, SystemExit),
    ],
)
def test_a_handler_that_is_interrupted_acknowledges_nothing_and_frees_its_key(place, subject, kind, error):
    checker, seen = MemoryChecker(), []
    registry = Registry()

    @registry.consumer(subject, group=GROUP, checker=checker)
    @kind
    def handle(message):
        seen.append(message.id)
        if len(seen) == 1:
            raise error

    place.send(Message(subject, id="1"))
    with pytest.raises(error):
        run_until(registry, place.adapter(), lambda: False)
    until(lambda: place.left(subject) == 1, "the message")
    summary = run_until(registry, place.adapter(), lambda: len(seen) == 2)
    assert seen == ["1", "1"]
    assert summary[Outcome.PROCESSED] == 1


@pytest.mark.parametrize("first_fails", [False, True])
def test_of_two_copies_at_once_one_runs_and_the_other_waits_for_its_end(place, subject, kind, first_fails):
    runs, finished = [], []

    class Watching(Observer):
        def processed(self, consumer, messages, results):
            finished.extend(result.outcome for result in results)

    registry = Registry(observers=[Watching()])

    @registry.consumer(subject, group=GROUP, checker=MemoryChecker(), backoff=SOON)
    @kind
    def handle(message):
        runs.append("began")
        time.sleep(0.5)
        if first_fails and len(runs) == 1:
            runs.append("failed")
            raise ValueError("not now")
        runs.append("done")

    place.send(Message(subject, id="1"), Message(subject, id="1"))
    run_until(registry, place.adapter(), lambda: Outcome.DUPLICATE in finished)
    assert runs == (["began", "failed"] if first_fails else []) + ["began", "done"]
    assert place.left(subject) == 0


def test_a_key_that_somebody_else_has_is_waited_for_and_not_requeued(place, subject, kind):
    checker, done = MemoryChecker(), []
    registry = Registry()
    consumer = registry.consumer(subject, group=GROUP, checker=checker)(kind(lambda m: done.append(m.id)))
    claim = checker.protocol.claim(
        ClaimRequest(consumer.binding.requests.of(Message(subject, id="1")).key)
    ).claim
    place.send(Message(subject, id="1"))
    timer = threading.Timer(1.5, lambda: checker.protocol.release(claim))
    timer.start()
    summary = run_until(registry, place.adapter(), lambda: done)
    timer.join()
    assert (done, summary.requeued, summary[Outcome.PROCESSED]) == (["1"], 0, 1)
    assert place.left(subject) == 0


def test_a_body_that_nobody_can_read_is_a_dead_letter_and_the_next_message_runs(place, subject, kind):
    done = []
    registry = Registry()

    @registry.consumer(subject, group=GROUP, checker=MemoryChecker(), retry_for=(OSError,))
    @kind
    def handle(message):
        done.append(message.json())

    place.send(
        Message(subject, b"\xff{", id="1"), Message(subject, b"{", id="2"), Message(subject, b"7", id="3")
    )
    run_until(registry, place.adapter(), lambda: done and len(place.dead_letters(subject)) == 2)
    letters = {letter.id: letter for letter in place.dead_letters(subject)}
    assert letters["1"].body == b"\xff{"
    assert letters["1"].headers["x-idempotent-reason"].startswith("UndecodableBodyError: ")
    assert letters["2"].headers["x-idempotent-reason"].startswith("UndecodableBodyError: ")
    assert letters["2"].headers["x-idempotent-outcome"] == "dead"
    assert done == [7]
    assert place.left(subject) == 0


@pytest.mark.parametrize("policy", ["reject", "process"])
def test_a_message_without_a_key_is_a_dead_letter_unless_the_consumer_takes_it(place, subject, policy):
    done = []
    registry = Registry()

    @registry.consumer(
        subject,
        group=GROUP,
        checker=MemoryChecker(),
        key=lambda message: message.headers.get("payment"),
        on_missing_key=policy,
    )
    def handle(message):
        done.append(message.body)

    place.send(
        Message(subject, b"without", id="1"), Message(subject, b"with", id="2", headers={"payment": "p"})
    )
    expected = 2 if policy == "process" else 1
    run_until(
        registry,
        place.adapter(),
        lambda: len(done) + len(place.dead_letters(subject)) == 2 and len(done) == expected,
    )
    letters = place.dead_letters(subject)
    if policy == "process":
        assert (sorted(done), letters) == ([b"with", b"without"], [])
    else:
        (letter,) = letters
        assert (done, letter.body) == ([b"with"], b"without")
        assert letter.headers["x-idempotent-reason"].startswith("MissingKeyError")
        assert letter.headers["x-idempotent-outcome"] == "rejected"
    assert place.left(subject) == 0


def test_without_the_stores_word_nothing_is_acknowledged(place, subject, kind):
    class Lost(MemoryChecker):
        def _complete(self, completion):
            raise StoreUnavailableError("gone")

    done = []
    registry = Registry()
    registry.consumer(subject, group=GROUP, checker=Lost())(kind(lambda message: done.append(message.id)))
    place.send(Message(subject, id="1"))
    # The drain would wait for the store, which never comes back.
    run_until(registry, place.adapter(), lambda: done, drain_timeout_s=0.5)
    until(lambda: place.left(subject) == 1, "the message")
    assert done == ["1"]


def test_tasks_that_run_when_the_worker_stops_are_cancelled_and_their_messages_come_again(place, subject):
    begun, checker = [], MemoryChecker()

    def registry_of(seconds):
        registry = Registry()

        @registry.consumer(subject, group=GROUP, checker=checker)
        async def handle(message):
            begun.append(message.id)
            await asyncio.sleep(seconds)

        return registry

    place.send(*numbered(subject, 30))
    cut = run_until(
        registry_of(100), place.adapter(), lambda: len(begun) >= 10, concurrency=10, drain_timeout_s=0.1
    )
    assert (cut.settled, cut.abandoned) == (0, 0)
    until(lambda: place.left(subject) == 30, "all messages")
    begun.clear()
    done = run_until(registry_of(0), place.adapter(), lambda: len(set(begun)) == 30, concurrency=10)
    assert done[Outcome.PROCESSED] == 30
    assert place.left(subject) == 0
