"""Delayed messages come back: also from a broker that is killed meanwhile, and late ones with a line in the log."""

from __future__ import annotations

import logging
import time

import pytest

from idempotent import Message
from idempotent.adapters.rabbitmq import session as rabbitmq_session
from idempotent.testing.adapter_contract import until
from tests.adapters.rabbitmq.member import ACK, failed
from tests.adapters.rabbitmq.rabbit import Rabbit, consumer_of, keep_working, receive
from tests.support.logs import logged
from tests.support.services import PrivateRabbitMq

# The first of them come back while the last are sent.
SENDING_S = 1.5


@pytest.mark.slow
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_a_killed_broker_loses_no_message_that_comes_back(spare, queue_type):
    broker = spare(PrivateRabbitMq)
    rabbit = Rabbit(broker.url)
    queue = rabbit.name()
    delays = make_delay_queue(rabbit, queue, queue_type)
    sent, began = set(), time.monotonic()
    while time.monotonic() < began + SENDING_S:
        some = [f"m-{number}" for number in range(len(sent), len(sent) + 20)]
        rabbit.send(*(Message(delays, id=each) for each in some))
        sent.update(some)
    broker.kill()
    broker.start()
    until(lambda: rabbit.depth(delays) == 0, "the end of all delays")
    came = {message.id for message in rabbit.look(f"{queue}.retry.due")}
    assert len(sent - came) == 0, f"{len(sent - came)} of {len(sent)} are lost"


@pytest.mark.slow
def test_a_broker_that_is_killed_when_it_has_just_made_a_delay_queue_loses_nothing(spare, caplog):
    """Such a queue may be empty after the restart, whatever it had confirmed."""
    caplog.set_level(logging.INFO)
    broker = spare(PrivateRabbitMq)
    rabbit = Rabbit(broker.url)
    queue = rabbit.name()
    adapter = rabbit.adapter()
    adapter.open([consumer_of(queue)])
    rabbit.send(Message(queue, id="m"))
    adapter.settle(*receive(adapter), failed(60.0))
    made = f"{queue}.retry.60000"
    until(
        lambda: (adapter.receive(0, 0.01), made in [line.queue for line in logged(caplog, "queue_created")])[
            1
        ],
        made,
    )
    keep_working(adapter, 0.2)
    broker.kill()
    broker.start()
    (again,) = receive(adapter, within_s=100.0)
    assert again.message.id == "m"
    adapter.close()


@pytest.mark.slow
@pytest.mark.parametrize("pull", [False, True])
def test_a_message_that_its_queue_refused_comes_back_with_a_line_in_the_log(
    tuned_rabbitmq, monkeypatch, caplog, pull
):
    monkeypatch.setattr(rabbitmq_session, "_LATE_S", 3.0)
    tuned_rabbitmq.tune("dead_letter_worker_publisher_confirm_timeout", 8000)
    rabbit = Rabbit(tuned_rabbitmq.url)
    queue = rabbit.name()
    adapter = rabbit.adapter(pull=True) if pull else rabbit.adapter(prefetch=1)
    adapter.open([consumer_of(queue)])
    rabbit.send(Message(queue, id="in time"))
    adapter.settle(*receive(adapter), failed(0.1))
    (in_time,) = receive(adapter)
    assert late(caplog) == []
    rabbit.send(Message(queue, id="late"))
    (refused,) = receive(adapter)
    # The worker takes no more from this queue before it has settled the first one.
    rabbit.send(Message(f"{queue}.retry.due", id="fills it"))
    with tuned_rabbitmq.refusing(f"^{queue}.retry.due$"):
        adapter.settle(refused, failed(0.1))
        until(lambda: (adapter.receive(0, 0.01), rabbit.depth(f"{queue}.retry.100"))[1], "its copy")
        until(lambda: rabbit.depth(f"{queue}.retry.100") == 0, "the end of its delay")
        time.sleep(1.0)
    adapter.settle(in_time, ACK)
    (other,) = receive(adapter)
    adapter.settle(other, ACK)
    (again,) = receive(adapter)
    assert (other.message.id, again.message.id) == ("fills it", "late")
    (line,) = late(caplog)
    assert (line.queue, line.more) == (f"{queue}.retry.due", 0)
    assert 3 < line.late_s < 60
    adapter.close()
    rabbit.clean_up()


def late(caplog):
    return logged(caplog, "delayed_message_late")


def make_delay_queue(rabbit: Rabbit, queue: str, queue_type: str) -> str:
    """The queue that an adapter makes for messages that wait for a second."""
    adapter = rabbit.adapter(queue_type=queue_type)
    adapter.open([consumer_of(queue)])
    rabbit.send(Message(queue, id="first"))
    adapter.settle(*receive(adapter), failed(1.0))
    receive(adapter)
    adapter.close()
    return f"{queue}.retry.1000"
