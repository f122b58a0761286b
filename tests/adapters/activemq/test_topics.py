"""Topics and durable subscriptions."""

import threading
import time

import pytest

from idempotent import Message, Outcome, Registry, Result, Worker
from idempotent.adapters.activemq import StompAdapter
from idempotent.checkers import MemoryChecker
from idempotent.errors import ConfigurationError
from tests.adapters.activemq.member import ACK, DEADLINE_S, QUICK, confirmed, receive, until_left


def test_a_durable_subscription_keeps_messages_while_nobody_is_here_and_every_group_gets_its_own(make, name):
    topic = f"/topic/{name}"
    billing = {"client_id": f"{name}-billing", "durable_subscription": "billing"}
    mailing = {"client_id": f"{name}-mailing", "durable_subscription": "mailing"}
    for options in (billing, mailing):
        adapter = make(topic, **options)
        adapter.publish(Message("/queue/elsewhere"))  # when it returns, the subscription stands
        adapter.close()
    make().publish(Message(topic, b"paid", id="a"))
    for options in (billing, mailing):
        (delivery,) = receive(adapter := make(topic, **options), 1)
        assert (delivery.message.subject, delivery.message.id) == (topic, "a")
        adapter.settle(delivery, ACK)
        adapter.close()
        again = make(topic, **options)
        assert again.receive(1, 0.5) == []
        again.close()


def test_a_message_has_its_effect_once_in_each_group_although_they_share_a_store(make, stomp_url, name):
    topic, checker, effects = f"/topic/{name}", MemoryChecker(), []
    workers = []
    for group in ("billing", "mail"):
        registry = Registry()
        registry.consumer(topic, group=group, checker=checker)(lambda _, to=group: effects.append(to))
        workers.append(Worker(registry, StompAdapter(stomp_url, backoff=QUICK), gc_interval_s=None))
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    sender, deadline = make("elsewhere"), time.monotonic() + DEADLINE_S
    while len(effects) < 2:  # a topic forgets what nobody subscribes to yet
        assert time.monotonic() < deadline
        sender.publish(Message(topic, id="a"))
        time.sleep(0.1)
    for worker, thread in zip(workers, threads, strict=True):
        worker.stop()
        thread.join(DEADLINE_S)
    assert sorted(effects) == ["billing", "mail"]


def test_dead_letters_of_a_topic_go_to_a_queue(make, stomp_url, name):
    adapter = make(f"/topic/{name}")
    adapter.publish(Message(f"/topic/{name}", id="a"))
    adapter.settle(receive(adapter, 1)[0], Result(Outcome.DEAD))
    confirmed(adapter)
    until_left(stomp_url, f"{name}.dead", "a")


def test_a_durable_subscription_is_for_one_topic_and_a_named_client(make, name):
    with pytest.raises(ConfigurationError, match="for the consumer of one topic"):
        make(client_id="c", durable_subscription="s")
    with pytest.raises(ConfigurationError, match="needs client_id"):
        make(f"/topic/{name}", durable_subscription="s")
