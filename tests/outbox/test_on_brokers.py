"""A relay to each real broker: a confirm that is lost, and a message that the broker never takes."""

import itertools
import secrets
import threading
import time
from collections import Counter, defaultdict
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import pytest
from sqlalchemy.orm import Session

from idempotent import Message, Outcome, Registry, Worker
from idempotent.adapters import adapter_from_url
from idempotent.checkers import MemoryChecker
from idempotent.outbox.admin import OutboxAdmin
from idempotent.testing.proxy import Proxy
from tests.outbox.brokers import BROKERS
from tests.outbox.picky import relay, until
from tests.support.services.activemq import MAX_FRAME_BYTES
from tests.torture.kafka_addresses import KafkaAddresses

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
# In the packet after which the broker has the messages. Kafka's client repeats it under its number: no copy stays.
LAST_WORD = {"rabbitmq": b"m25", "activemq": b"COMMIT\n", "kafka": b"m25", "fenced kafka": b"m25"}

pytestmark = pytest.mark.parametrize("sql_store", ["postgres"], indirect=True)


@pytest.fixture(params=BROKERS)
def broker(request):
    return request.param


@pytest.fixture
def place(broker, request):
    """The broker, with a queue that `place.queue` names."""
    with BROKERS[broker](request) as place:
        place.queue = f"relayed_{secrets.token_hex(6)}"
        place.make(place.queue)
        yield place


@pytest.fixture
def commit(outbox, sql_store):
    """`commit(message, ...)`: in one transaction."""

    def commit(*messages):
        with Session(sql_store.admin_engine) as session, session.begin():
            for message in messages:
                outbox.send(session, message)

    return commit


def proxied(url):
    """A proxy before the broker of a URL, and the URL through it."""
    parts = urlsplit(url)
    host, port = parts.hostname, parts.port

    def translated():
        return KafkaAddresses((host, port), ("127.0.0.1", proxy.port))

    proxy = Proxy(host, port, patience_s=1.0, translate=translated if parts.scheme == "kafka" else None)
    login, at, _ = parts.netloc.rpartition("@")
    return proxy, parts._replace(netloc=f"{login}{at}127.0.0.1:{proxy.port}").geturl()


@contextmanager
def consumed(place):
    """What a consumer with a checker gets: the messages, and how often each outcome was met."""
    registry, seen, outcomes = Registry(), [], Counter()
    registry.consumer(place.queue, checker=MemoryChecker())(seen.append)
    worker = Worker(
        registry, adapter_from_url(place.url), on_result=lambda _, result: outcomes.update([result.outcome])
    )
    running = threading.Thread(target=worker.run)
    running.start()
    try:
        yield seen, outcomes
    finally:
        worker.stop()
        running.join()


def test_a_batch_whose_confirm_is_lost_comes_again_under_the_same_ids(broker, place, commit, outbox, waiting):
    headers = {"traceparent": TRACE}
    sent = [Message(place.queue, f"m{number}".encode(), headers=headers) for number in range(50)]
    if "kafka" in broker:
        sent.append(Message(place.queue, None, key="deleted"))
    proxy, url = proxied(place.relay_url)
    with closing(proxy):
        lost = proxy.lose(LAST_WORD[broker])
        commit(*sent)
        with relay(outbox, adapter_from_url(url)):
            until(lambda: not waiting())
        assert lost.is_set()
    with consumed(place) as (seen, outcomes):
        until(lambda: len(seen) >= len(sent))
        if "kafka" not in broker:
            until(lambda: outcomes[Outcome.DUPLICATE])
    assert Counter(message.body for message in seen) == Counter(message.body for message in sent)
    for message in seen:
        assert (message.key if message.body is None else message.headers["traceparent"]) in (
            b"deleted",
            TRACE,
        )


def poison_of(broker, place):
    """A message that the broker does not take, for a reason of its own."""
    if broker == "rabbitmq":
        return Message(f"{place.queue}\n", b"poison", id="poison", key="k")
    # ActiveMQ ends the connection, which has other reasons too: only while it takes others it has refused this one.
    return Message(place.queue, bytes(2 * MAX_FRAME_BYTES), id="poison", key="k")


def test_a_poisonous_message_holds_its_own_key_until_a_person_drops_it(
    broker, place, commit, outbox, waiting
):
    keyed = [Message(place.queue, f"k{number}".encode(), key="k") for number in range(3)]
    others = [Message(place.queue, f"other {key}".encode(), key=key) for key in "abcdefgh"]
    commit(keyed[0], *others[:4], poison_of(broker, place), *others[4:], *keyed[1:])
    with consumed(place) as (seen, _), relay(outbox, adapter_from_url(place.relay_url)):

        def bodies():
            return {message.body for message in seen}

        until(lambda: {b"k0", *(message.body for message in others)} <= bodies())
        more = (f"more {number}".encode() for number in itertools.count())
        while outbox.store.stats().held < 3:
            commit(Message(place.queue, next(more)))
            time.sleep(0.2)
        assert not {b"k1", b"k2"} & bodies()
        assert OutboxAdmin(outbox).drop("poison", by="anna") == 1
        until(lambda: {b"k1", b"k2"} <= bodies())
        until(lambda: not waiting())
    by_key = defaultdict(list)
    for message in seen:
        by_key[message.body[:1]].append(message.body)
    assert by_key[b"k"] == [b"k0", b"k1", b"k2"]
    assert len(by_key[b"o"]) == len(others)
