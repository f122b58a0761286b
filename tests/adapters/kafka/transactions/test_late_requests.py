"""A request of a transaction that reaches the broker late, after the client library has sent it again."""

from __future__ import annotations

import struct
from contextlib import contextmanager

import pytest

from idempotent.testing.adapter_contract import until
from idempotent.testing.proxy import Loss
from tests.adapters.kafka.line import Line
from tests.adapters.kafka.member import receive
from tests.adapters.kafka.through_proxy import through_proxy
from tests.adapters.kafka.transactions.test_failing import ERRORS, Unreliable
from tests.support.logs import events

# API keys and versions, as the header of a request begins.
END_TXN = struct.pack(">hh", 26, 1)
TRIES = 6


class Late(Unreliable):
    """A client whose offsets are refused, after a late request has reached the broker."""

    def __init__(self, client, deliver):
        super().__init__(client, "send_offsets_to_transaction", ERRORS["abort"], happens=False)
        self._deliver = deliver

    def send_offsets_to_transaction(self, *arguments):
        self._deliver()
        return self.__getattr__("send_offsets_to_transaction")(*arguments)


@contextmanager
def line_behind_a_proxy(broker, count, **options):
    line = Line(broker)
    line.send(count)
    with through_proxy(broker) as (proxy, line.bootstrap), line.opened(**options) as adapter:
        producer = adapter._group._commits._producer
        until(lambda: adapter.receive(0, 0.05) == [] and producer._is_ready, "a producer")
        yield line, adapter, producer, proxy


@pytest.mark.slow
def test_an_end_that_comes_late_ends_no_other_transaction(broker, caplog, monkeypatch):
    """Sometimes the client library never sends the request again; then the adapter has replaced its client anyway."""
    monkeypatch.setattr("idempotent.adapters.kafka.transactions.open_transaction._PATIENCE_S", 4.0)
    for _ in range(TRIES):
        caplog.clear()
        if was_sent_again(broker, caplog):
            return


def was_sent_again(broker, caplog) -> bool:
    """Let an end come late, and look at what arrives; False: the client library did not send it again."""
    with line_behind_a_proxy(broker, 2) as (line, adapter, producer, proxy):
        seen = proxy.lose(END_TXN, Loss.LATE)
        line.settle(adapter, *receive(adapter))
        until(lambda: adapter.receive(0, 0.05) == [] and line.committed() == 1, "the first offset")
        assert seen.is_set()
        if "transaction_failed" in events(caplog):
            return False
        until(lambda: adapter.receive(0, 0.05) == [] and producer._is_ready, "a producer")
        late = producer.client = Late(producer.client, proxy.deliver)
        line.settle(adapter, *receive(adapter))
        until(lambda: adapter.receive(0, 0.05) == [] and line.committed() == 2, "the second offset")
        assert late.is_spent
    assert line.arrived() == [0, 1]
    return True
