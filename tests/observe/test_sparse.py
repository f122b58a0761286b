"""Of many events in a minute one is logged, with the number of the others."""

import logging

from idempotent import Message, Outcome, Registry
from idempotent.checkers import MemoryChecker
from idempotent.errors import StoreUnavailableError
from idempotent.observe.log_lines import LogThrottle
from tests.support.logs import logged


def test_one_a_minute_is_let_through_with_the_number_of_the_others():
    now = [1000.0]
    sparse = LogThrottle(lambda: now[0])
    assert [sparse.take() for _ in range(4)] == [0, None, None, None]
    now[0] += 59
    assert sparse.take() is None
    now[0] += 1
    assert sparse.take() == 4
    assert sparse.take() is None
    now[0] += 3600
    assert sparse.take() == 1


class Down(MemoryChecker):
    def _claim(self, request):
        raise StoreUnavailableError("connection refused")


def test_an_outage_of_the_store_is_one_line_for_each_consumer(caplog):
    caplog.set_level(logging.WARNING)
    registry = Registry()
    consumers = [registry.consumer(name, checker=Down())(lambda _: None) for name in ("orders", "mails")]
    for number in range(50):
        for consumer in consumers:
            message = Message(consumer.subject, id=str(number))
            assert consumer.process(message).outcome is Outcome.UNAVAILABLE
    lines = logged(caplog, "store_failed")
    assert [line.consumer for line in lines] == ["orders:default", "mails:default"]
    assert [(line.message_id, line.position, line.more) for line in lines] == [("0", None, 0)] * 2
    assert "connection refused" in lines[0].error
