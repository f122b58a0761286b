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
        self._broker, self._kind, self._url = broker, kind, url
        broker.make(self.topic)

    def working(self):
        semantics = "exactly_once" if self._kind == "exactly_once" else "effectively_once"
        adapter = KafkaAdapter(self._broker.bootstrap, semantics=semantics)
        checker = {
            "effectively_once": MemoryChecker,
            "exactly_once": AttemptChecker,
            "offsets": lambda: OffsetChecker(self._url),
        }[self._kind]()
        handler = self._book if self._kind == "offsets" else self._note
        return working(adapter, self.topic, handler, group=self.topic, checker=checker)

    def _note(self, message):
        self.read.append(int(message.body))

    def _book(self, message, session):
        self._note(message)

    def make_again(self):
        self.read.clear()
        self._broker.drop(self.topic)
        until(self._makes, "a topic")
        send(Broker(self._broker.bootstrap), self.topic, self.new)

    def _makes(self):
        try:
            self._broker.make(self.topic)
        except Exception:
            return False
        return True


@pytest.mark.slow
@pytest.mark.parametrize("is_stopped", [False, True])
def test_nothing_of_a_topic_that_is_made_again_is_skipped(broker, caplog, monkeypatch, tmp_path, is_stopped):
    monkeypatch.setattr(kafka_assignment, "_LOOK_S", 1.0)
    url = f"sqlite:///{tmp_path / 'offsets.db'}"
    upgrade(url)
    lines = [Line(broker, kind, new, url) for kind in KINDS for new in (OLD - 1, 10 * OLD)]
    with ExitStack() as first, ExitStack() as second:
        for line in lines:
            first.enter_context(line.working())
            send(broker, line.topic, OLD)
        for line in lines:
            until(lambda line=line: len(line.read) == OLD, line.name)
            until(lambda line=line: broker.committed(line.topic, line.topic) == OLD, line.name)
        if is_stopped:
            first.close()
        for line in lines:
            line.make_again()
        if is_stopped:
            for line in lines:
                second.enter_context(line.working())

        def is_whole(line):
            named = any(record.topic == line.topic for record in logged(caplog, "topic_made_again"))
            return named or set(line.read) == set(range(line.new))

        for line in lines:
            until(lambda line=line: is_whole(line), line.name)
