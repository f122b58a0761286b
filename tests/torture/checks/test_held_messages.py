"""What waits for its key is in the journal before anything behind it can have happened."""

import pytest

from idempotent import Message, Registry
from idempotent.checkers import MemoryChecker
from idempotent.errors import StoreUnavailableError
from tests.torture.journal import JournalObserver, What


class Lines:
    def __init__(self):
        self.held = []

    def write(self, what, *, id, position):
        assert what is What.HELD
        self.held.append(id)


class Killed(BaseException):
    """In the place of SIGKILL."""


@pytest.fixture
def lines():
    return Lines()


def watched(checker, lines, handle=lambda _: None):
    registry = Registry(observers=[JournalObserver(lines)])
    return registry.consumer("orders", checker=checker)(handle)


def test_it_is_written_although_the_process_dies_within_the_group(lines):
    checker, seen = MemoryChecker(), []

    def handle(message):
        seen.append((message.id, set(lines.held)))
        raise Killed

    consumer = watched(checker, lines, handle)
    checker.protocol.claim(consumer.binding.requests.of(Message("orders", id="1")))
    lines.held.clear()
    with pytest.raises(Killed):
        consumer.process_many([Message("orders", id=number) for number in "12"])
    assert seen == [("2", {"1"})]


@pytest.mark.parametrize("group", [["1"], ["1", "2"]])
def test_what_the_store_said_nothing_of_may_be_late(lines, group):
    class Silent(MemoryChecker):
        def _claim(self, request):
            raise StoreUnavailableError("no answer")

    watched(Silent(), lines).process_many([Message("orders", id=number) for number in group])
    assert set(lines.held) == set(group)


def test_one_that_a_worker_processes_by_itself_may_be_late_too(lines):
    checker = MemoryChecker()
    consumer = watched(checker, lines)
    checker.protocol.claim(consumer.binding.requests.of(Message("orders", id="1")))
    lines.held.clear()
    consumer.process(Message("orders", id="1"))
    assert "1" in lines.held


def test_one_whose_completion_was_not_recorded_may_be_late(lines):
    class Forgetful(MemoryChecker):
        def _complete(self, completion):
            raise StoreUnavailableError("no answer")

    watched(Forgetful(), lines).process(Message("orders", id="1"))
    assert lines.held == ["1"]


def test_what_has_lapsed_may_not(lines):
    now = [1000.0]
    checker = MemoryChecker(lease_s=1, clock=lambda: now[0])
    consumer = watched(checker, lines)
    checker.protocol.claim(consumer.binding.requests.of(Message("orders", id="1")))
    lines.held.clear()
    now[0] += 5
    consumer.process_many([Message("orders", id=number) for number in "12"])
    assert lines.held == []
