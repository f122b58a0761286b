"""Relays that come and go, are paused, or run by wrong clocks: nothing is lost, and first occurrences are in order."""

import random
import threading
import time
from collections import defaultdict

import pytest
from sqlalchemy.orm import Session

from idempotent import Message
from idempotent.outbox import Outbox
from tests.adapters.rabbitmq.rabbit import Rabbit
from tests.outbox.picky import Picky, relay, until
from tests.outbox.relay_process import RelayProcess

RELAYS = 10
FOR_S = 4.0
KEYS = 12
TOGETHER = 5
MANY = 6_000

on_servers = pytest.mark.parametrize("sql_store", ["mysql", "postgres"], indirect=True)


@pytest.fixture
def queue(rabbitmq_url):
    """A queue of RabbitMQ, and the broker from the outside."""
    rabbit = Rabbit(rabbitmq_url)
    yield rabbit.declare(rabbit.name()), rabbit
    rabbit.clean_up()


@pytest.fixture
def send_to(outbox, sql_store):
    """`send_to(queue, *bodies, **options)`: in one transaction; the order key is the first word of a body."""

    def send_to(queue, *bodies, **options):
        with Session(sql_store.admin_engine) as session, session.begin():
            for body in bodies:
                outbox.send(session, Message(queue, body.encode()), order_key=body.split()[0], **options)

    return send_to


def firsts_by_key(bodies):
    """The numbers of each order key, each where it occurred first. A body is `key number`."""
    found = defaultdict(list)
    for body in dict.fromkeys(bodies):
        key, number = body.split()
        found[key].append(int(number))
    return found


@pytest.mark.slow
@on_servers
def test_ten_relays_that_start_and_stop_at_random_publish_each_message_once(outbox, send, waiting, sql_store):
    log, ends_at, errors = [], time.monotonic() + FOR_S, []

    def come_and_go(number):
        chance = random.Random(number)
        mine = Outbox(sql_store.engine(), table=sql_store.table)
        try:
            while time.monotonic() < ends_at:
                adapter = Picky()
                adapter.published = log
                with relay(mine, adapter, batch_size=chance.choice([3, 20, 500])):
                    time.sleep(chance.uniform(0.1, 0.8))
        except Exception as error:
            errors.append(error)
        finally:
            mine.close()

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(RELAYS)]
    for thread in threads:
        thread.start()
    sent = 0
    while time.monotonic() < ends_at:
        for key in range(KEYS):
            send(*(f"k{key} {number}" for number in range(sent, sent + TOGETHER)), order_key=f"k{key}")
        sent += TOGETHER
    for thread in threads:
        thread.join()
    assert errors == []
    adapter = Picky()
    adapter.published = log
    with relay(outbox, adapter):
        until(lambda: not waiting())
    bodies = [body for _, body in log]
    assert firsts_by_key(bodies) == {f"k{key}": list(range(sent)) for key in range(KEYS)}
    # Each relay gives its buckets back when it stops, and its lease is longer than the test.
    assert len(log) == len(set(log)) == KEYS * sent


@pytest.mark.slow
@on_servers
def test_a_relay_that_was_paused_past_its_lease_repeats_under_the_same_ids(
    outbox, send_to, waiting, sql_store, queue
):
    name, rabbit = queue
    for start in range(0, MANY, 1000):
        send_to(name, *(f"k{number % KEYS} {number}" for number in range(start, start + 1000)))
    with RelayProcess(sql_store, rabbit.url) as first:
        until(lambda: rabbit.depth(name) > 0)
        first.pause()
        assert waiting(), "all was published before the pause"
        with RelayProcess(sql_store, rabbit.url) as second:
            until(lambda: not waiting(), "the other relay does not take over")
            first.resume()
            # It is alive, and shares again.
            until(lambda: outbox.store.stats().relays == 2)
            send_to(name, "later 0")
            until(lambda: not waiting())
            second.stop()
        first.stop()
    found = rabbit.look(name)
    ids = defaultdict(set)
    for message in found:
        ids[message.body].add(message.id)
    assert len(ids) == MANY + 1
    assert all(len(of_one) == 1 for of_one in ids.values())
    firsts = firsts_by_key(message.body.decode() for message in found)
    assert all(numbers == sorted(numbers) for numbers in firsts.values())


@pytest.mark.slow
@on_servers
def test_relays_whose_clocks_differ_by_hours_share_the_buckets_and_repeat_nothing(
    outbox, send_to, waiting, sql_store, queue
):
    name, rabbit = queue
    with (
        RelayProcess(sql_store, rabbit.url, ahead_s=7200.0) as ahead,
        RelayProcess(sql_store, rabbit.url, ahead_s=-7200.0) as behind,
    ):
        until(lambda: outbox.store.stats().relays == 2)
        send_to(name, "delayed 0", delay_s=4.0)
        began, came_s = time.monotonic(), None
        for number in range(100):  # for five seconds, in which each lease is renewed several times
            send_to(name, *(f"k{key} {number}" for key in range(KEYS)))
            time.sleep(0.05)
            if came_s is None and not outbox.store.stats().delayed:
                came_s = time.monotonic() - began
        until(lambda: not waiting() and not outbox.store.stats().delayed)
        ahead.stop()
        behind.stop()
    bodies = [message.body.decode() for message in rabbit.look(name)]
    assert firsts_by_key(bodies) == {f"k{key}": list(range(100)) for key in range(KEYS)} | {"delayed": [0]}
    assert len(bodies) == len(set(bodies))
    assert came_s is None or came_s > 3.0


@pytest.mark.slow
@on_servers  # SQLite has the clock of the process
def test_the_clock_of_the_process_may_jump_while_a_relay_runs(outbox, send, waiting, monkeypatch):
    adapter = Picky()
    right, right_ns = time.time, time.time_ns
    with relay(outbox, adapter, lease_s=2.0):
        send("k 0", order_key="k")
        until(lambda: adapter.bodies == ["k 0"])
        for number, jump_s in enumerate([3600.0, -3600.0, 86_400.0 * 365], start=1):
            monkeypatch.setattr(time, "time", lambda jump_s=jump_s: right() + jump_s)
            monkeypatch.setattr(time, "time_ns", lambda jump_s=jump_s: right_ns() + round(jump_s * 1e9))
            time.sleep(0.7)  # a third of the lease: it renews
            send(f"k {number}", order_key="k")
            send(f"delayed {number}", delay_s=0.5)
            until(lambda: not waiting() and not outbox.store.stats().delayed)
            assert outbox.store.stats().relays == 1
    of_key = [body for body in adapter.bodies if body.startswith("k")]
    assert of_key == [f"k {number}" for number in range(4)]
    assert len(adapter.bodies) == len(set(adapter.bodies)) == 7
    assert len({message_id for message_id, _ in adapter.published}) == 7
