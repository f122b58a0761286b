"""A topic that is deleted and created again: nothing of the new one is skipped without a line in the log."""

import secrets
from contextlib import ExitStack

import pytest

from idempotent.adapters.kafka import KafkaAdapter
from idempotent.adapters.kafka import assignment as kafka_assignment
from idempotent.checkers import AttemptChecker, MemoryChecker, OffsetChecker
from idempotent.migrations import upgrade
from idempotent.testing.adapter_contract import until
from tests.adapters.kafka.broker import Broker
from tests.adapters.kafka.member import send, working
from tests.adapters.kafka.test_contract import lose_partitions
from tests.support.logs import logged

OLD = 3
KINDS = ["effectively_once", "exactly_once", "offsets"]


class Line:
    """A topic and its consumer, which is a group of its own."""

    def __init__(self, broker, kind, new, url):
        self.topic = f"orders-{secrets.token_hex(6)}"
        self.name = f"{kind} {new}"
        self.new = new
        self.read = []
        self.stack = ExitStack()
        self._broker, self._kind, self._url = broker, kind, url
        broker.make(self.topic)

    def start(self):
        semantics = "exactly_once" if self._kind == "exactly_once" else "effectively_once"
        self.adapter = KafkaAdapter(self._broker.bootstrap, semantics=semantics)
        checker = {
            "effectively_once": MemoryChecker,
            "exactly_once": AttemptChecker,
            "offsets": lambda: OffsetChecker(self._url),
        }[self._kind]()
        handler = self._book if self._kind == "offsets" else self._note
        worker = working(self.adapter, self.topic, handler, group=self.topic, checker=checker)
        self.stack.enter_context(worker)

    def _note(self, message):
        self.read.append(int(message.body))

    def _book(self, message, session):
        self._note(message)

    def make_again(self):
        self.read.clear()
        self._broker.drop(self.topic)
        until(self._makes, "a topic")
        until(lambda: self.committed() is None, "an end of the offsets of the old topic")

    def committed(self):
        return self._broker.committed(self.topic, self.topic)

    def send_new(self):
        send(Broker(self._broker.bootstrap), self.topic, self.new)

    def _makes(self):
        try:
            self._broker.make(self.topic)
        except Exception:
            return False
        return True


def rebalance(line, caplog):
    """Take its partition away, and wait until it has it again."""

    def times_assigned():
        assigned = logged(caplog, "partitions_assigned")
        return sum(f"{line.topic}/0" in record.partitions for record in assigned)

    before = times_assigned()
    lose_partitions(line.adapter)
    until(lambda: times_assigned() > before, line.name)


@pytest.mark.slow
@pytest.mark.parametrize("event", ["none", "stop_before", "stop_after", "rebalance"])
def test_nothing_of_a_topic_that_is_made_again_is_skipped(broker, caplog, monkeypatch, tmp_path, event):
    caplog.set_level("INFO")
    monkeypatch.setattr(kafka_assignment, "_LOOK_S", 1.0)
    url = f"sqlite:///{tmp_path / 'offsets.db'}"
    upgrade(url)
    lines = [Line(broker, kind, new, url) for kind in KINDS for new in (OLD - 1, 10 * OLD)]

    def is_whole(line):
        named = any(record.topic == line.topic for record in logged(caplog, "topic_made_again"))
        return named or set(line.read) == set(range(line.new))

    with ExitStack() as running:
        for line in lines:
            running.enter_context(line.stack)
            line.start()
            send(broker, line.topic, OLD)
        for line in lines:
            until(lambda line=line: len(line.read) == OLD, line.name)
            until(lambda line=line: line.committed() == OLD, line.name)
        if event == "stop_before":
            for line in lines:
                line.stack.close()
        for line in lines:
            line.make_again()
            if event == "stop_after":
                line.stack.close()
            elif event == "rebalance":
                rebalance(line, caplog)
            assert line.committed() is None, line.name
            line.send_new()
        if event.startswith("stop"):
            for line in lines:
                line.start()
        for line in lines:
            until(lambda line=line: is_whole(line), line.name)
