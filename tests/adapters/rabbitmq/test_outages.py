"""RabbitMqAdapter, and brokers, connections and processes that go away."""

import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sqlalchemy import create_engine, text

from idempotent import Message, Outcome, Result, Worker
from idempotent.errors import AdapterError
from idempotent.migrations import upgrade
from idempotent.testing.adapter_contract import until
from idempotent.testing.crashpoints import CRASH_VARIABLE
from idempotent.testing.proxy import Loss, Proxy
from tests.adapters.rabbitmq.child import registry_over
from tests.adapters.rabbitmq.rabbit import Rabbit, consumer_of, keep_working, numbered, receive
from tests.support.services import PrivateRabbitMq

ROOT = Path(__file__).parents[3]
DEAD = Result(Outcome.DEAD, error=ValueError("no such customer"))
ACK = Result(Outcome.PROCESSED)


@pytest.fixture
def database(tmp_path):
    """A file with keys, and a table of effects in which nothing is unique."""
    url = f"sqlite:///{tmp_path}/keys.db"
    upgrade(url)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (id TEXT)"))
    engine.dispose()
    return url


def effects(database):
    engine = create_engine(database)
    with engine.connect() as connection:
        found = [row.id for row in connection.execute(text("SELECT id FROM effects"))]
    engine.dispose()
    return sorted(found)


@pytest.fixture
def start(rabbit, queue, database):
    """`start(ack, crash_at)` is a worker in a process of its own, which the test's end kills."""
    children = []

    def start_(ack="manual", crash_at=None):
        environment = {**os.environ, **({CRASH_VARIABLE: crash_at} if crash_at else {})}
        command = [sys.executable, "-m", "tests.adapters.rabbitmq.child", rabbit.url, queue, database, ack]
        child = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)
        children.append(child)
        return child

    yield start_
    for child in children:
        child.kill()
        child.wait()
        child.stderr.close()


def is_killed(child):
    return child.wait(150) == -signal.SIGKILL


def all_settled(rabbit, queue, worker):
    """Ends the worker in order; what it has not acknowledged is back in the queue then."""
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(150) == 0, worker.stderr.read()
    return rabbit.depth(queue) == 0


# Processes that are killed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ack", "point"),
    [
        ("manual", "before_commit:3"),
        ("manual", "after_commit:3"),
        ("manual", "after_ack:3"),
    ],
)
def test_a_worker_killed_at_any_step_repeats_no_effect_and_loses_none(
    rabbit, queue, database, start, point, ack
):
    rabbit.send(*numbered(queue, 10))
    assert is_killed(start(ack, point))
    second = start(ack)
    until(lambda: len(effects(database)) >= 10, "ten effects")
    until(lambda: rabbit.depth(queue) == 0, "an empty queue")
    assert all_settled(rabbit, queue, second)
    assert effects(database) == sorted(f"m-{number}" for number in range(10))


# Connections that are lost at the worst moment


def behind_a_proxy(rabbit, **options):
    parts = urlsplit(rabbit.url)
    proxy = Proxy("127.0.0.1", parts.port)
    place = parts.netloc.rpartition("@")[0]
    adapter = rabbit.adapter(f"amqp://{place}@127.0.0.1:{proxy.port}{parts.path}", **options)
    return proxy, adapter


def test_auto_hands_out_no_message_whose_acknowledgement_was_lost(rabbit, queue):
    proxy, adapter = behind_a_proxy(rabbit, ack="auto")
    adapter.open([consumer_of(queue)])
    try:
        rabbit.send(*numbered(queue, 3))
        lost = proxy.lose(struct.pack(">HH", 60, 80), Loss.QUESTION)  # basic.ack
        taken = receive(adapter, 3)
        assert lost.is_set()
        assert Counter(delivery.message.id for delivery in taken) == {"m-0": 1, "m-1": 1, "m-2": 1}
        keep_working(adapter, 0.5)
    finally:
        adapter.close()
        proxy.close()
    assert rabbit.depth(queue) == 0


@pytest.mark.parametrize(
    ("loss", "letters"), [(Loss.QUESTION, 1), (Loss.ANSWER, 2)], ids=["copy lost", "confirmation lost"]
)
def test_a_connection_lost_around_a_dead_letter_loses_nothing(rabbit, queue, loss, letters):
    proxy, adapter = behind_a_proxy(rabbit)
    adapter.open([consumer_of(queue)])
    try:
        rabbit.send(Message(queue, id="1"))
        (delivery,) = receive(adapter)
        proxy.lose(b"no such customer", loss)
        adapter.settle(delivery, DEAD)
        # The copy has a connection of its own: the delivery stays, and the copy is sent again.
        until(proxy.cut_off.is_set, "a lost connection")
        until(lambda: len(rabbit.look(f"{queue}.dead")) == letters, "the dead letters")
        keep_working(adapter, 0.5)
        assert adapter.stale_settlements == 0
    finally:
        adapter.close()
        proxy.close()
    assert [letter.id for letter in rabbit.look(f"{queue}.dead")] == ["1"] * letters
    assert rabbit.depth(queue) == 0


@pytest.mark.parametrize(
    "method", [bytes([0, 10, 0, 11]), bytes([0, 10, 0, 40])], ids=["logging in", "opening the virtual host"]
)
def test_a_first_connection_lost_while_it_is_opened_is_tried_again(rabbit, queue, method):
    proxy, adapter = behind_a_proxy(rabbit)
    proxy.lose(method, Loss.QUESTION)
    try:
        adapter.open([consumer_of(queue)])
        assert proxy.cut_off.is_set()
        assert not adapter.connected
        rabbit.send(Message(queue, id="1"))
        (delivery,) = receive(adapter)
        adapter.settle(delivery, ACK)
    finally:
        adapter.close()
        proxy.close()


USER = 'rabbit_auth_backend_internal:set_user_limits(<<"idempotent">>, #{<<"max-%s">> => %%d}, <<"tests">>).'
VHOST = 'rabbit_vhost_limit:set(<<"/">>, [{<<"max-%s">>, %%d}], <<"tests">>).'


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (VHOST % "connections", "connection limit (0) is reached"),
        (USER % "connections", "user connection limit (0) is reached"),
        (USER % "channels", "maximum allowed user limit of"),
        (VHOST % "queues", "queue limit in vhost"),
    ],
    ids=["connections of the virtual host", "connections of the user", "channels", "queues"],
)
def test_a_limit_that_is_reached_at_the_start_is_waited_for(tuned_rabbitmq, caplog, limit, words):
    rabbit = Rabbit(tuned_rabbitmq.url)
    queue = rabbit.declare(rabbit.name())
    adapter = rabbit.adapter()
    tuned_rabbitmq.evaluate(limit % 0)
    try:
        adapter.open([consumer_of(queue)])
        keep_working(adapter, 0.3)
        assert not adapter.connected
        assert words in caplog.text
    finally:
        tuned_rabbitmq.evaluate(limit % -1)
    rabbit.send(Message(queue, id="1"))
    assert receive(adapter)[0].message.id == "1"
    adapter.close()


def test_a_queue_that_another_consumes_exclusively_is_waited_for(rabbit, queue, caplog):
    adapter = rabbit.adapter()
    with rabbit.channel() as channel:
        channel.basic_consume(queue, lambda *_: None, exclusive=True)
        adapter.open([consumer_of(queue)])
        keep_working(adapter, 0.3)
        assert not adapter.connected
        assert "in exclusive use" in caplog.text
    rabbit.send(Message(queue, id="1"))
    assert receive(adapter)[0].message.id == "1"
    adapter.close()


def test_a_lost_acknowledgement_is_counted_and_the_message_comes_again(rabbit, queue):
    proxy, adapter = behind_a_proxy(rabbit)
    adapter.open([consumer_of(queue)])
    try:
        rabbit.send(Message(queue, id="1"))
        (delivery,) = receive(adapter)
        proxy.lose(bytes([0, 60, 0, 80]), Loss.QUESTION)  # basic.ack
        adapter.settle(delivery, ACK)
        (again,) = receive(adapter)
        assert again.message.redelivered
        adapter.settle(again, ACK)
        keep_working(adapter, 0.3)
    finally:
        adapter.close()
        proxy.close()
    assert rabbit.depth(queue) == 0


# Brokers that go away


@pytest.mark.slow
@pytest.mark.parametrize("way", ["stop", "kill"])
def test_a_broker_that_restarts_in_the_middle_repeats_no_effect_and_loses_none(spare, database, way):
    broker = spare(PrivateRabbitMq)
    rabbit = Rabbit(broker.url)
    queue = rabbit.declare(rabbit.name())
    rabbit.send(*numbered(queue, 600))
    adapter = rabbit.adapter(ack="batched", prefetch=50)
    worker = Worker(registry_over(queue, database), adapter, concurrency=2, gc_interval_s=None)
    summary = []
    thread = threading.Thread(target=lambda: summary.append(worker.run()))
    thread.start()
    try:
        until(lambda: len(effects(database)) > 50, "a beginning")
        getattr(broker, way)()
        seen = len(effects(database))
        assert seen < 600, "stopped too late to mean anything"
        until(lambda: not adapter.connected, "a loss")
        broker.start()
        until(lambda: len(effects(database)) >= 600, "all effects")
        until(lambda: rabbit.depth(queue) == 0, "an empty queue")
    finally:
        worker.stop()
        thread.join(150)
    assert effects(database) == sorted(f"m-{number}" for number in range(600))
    assert rabbit.depth(queue) == 0
    assert summary[0].settled >= 600


@pytest.mark.slow
def test_a_broker_that_comes_later_is_waited_for_call_by_call(spare):
    broker = spare(PrivateRabbitMq)
    rabbit = Rabbit(broker.url)
    queue = rabbit.name()
    broker.stop()
    hasty = rabbit.adapter(fail_fast=True)
    with pytest.raises(AdapterError, match=r"cannot connect to amqp://127.*refused"):
        hasty.open([consumer_of(queue)])
    adapter = rabbit.adapter()
    adapter.open([consumer_of(queue)])
    assert not adapter.connected
    with pytest.raises(AdapterError, match="not connected"):
        adapter.publish(Message(queue))
    for _ in range(5):
        began = time.monotonic()
        assert adapter.receive(1, 0.2) == []
        assert time.monotonic() - began < 4.0
    broker.start()
    until(lambda: (adapter.receive(1, 0.1), adapter.connected)[1], "a connection")
    adapter.publish(Message(queue, id="1"))
    assert receive(adapter)
    broker.pause()
    try:
        began = time.monotonic()
        assert adapter.receive(1, 0.3) == []
        assert time.monotonic() - began < 4.0
    finally:
        broker.resume()
    adapter.close()


def test_what_a_quorum_queue_gives_up_is_a_dead_letter(tuned_rabbitmq):
    rabbit = Rabbit(tuned_rabbitmq.url)
    queue = rabbit.name()
    tuned_rabbitmq.evaluate(
        f'rabbit_policy:set(<<"/">>, <<"limit">>, <<"{queue}">>, [{{<<"delivery-limit">>, 1}}], 0,'
        ' <<"queues">>, <<"tests">>).'
    )
    adapter = rabbit.adapter(queue_type="quorum")
    adapter.open([consumer_of(queue)])
    rabbit.send(Message(queue, id="1"))
    for _ in range(2):
        adapter.requeue(receive(adapter)[0])
    until(lambda: (keep_working(adapter, 0.1), rabbit.depth(f"{queue}.dead") == 1)[1], "a dead letter")
    adapter.close()
    (letter,) = rabbit.look(f"{queue}.dead")
    assert letter.id == "1"
    assert letter.headers["x-death"][0]["reason"] == "delivery_limit"
