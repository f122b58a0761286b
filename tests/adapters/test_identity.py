"""Which message is which: the ids that producers gave, through copies, redrives and what handlers send on."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from dataclasses import replace

import pytest

from idempotent import Message, Registry, Worker
from idempotent.adapters.base import Adapter
from idempotent.adapters.files import FileAdapter
from idempotent.admin import KeyFilter
from idempotent.checkers import MemoryChecker
from idempotent.claims import KeyStatus
from idempotent.policy import Backoff
from idempotent.redrive import redrive
from tests.adapters.conformance_child import GROUP
from tests.adapters.places import BROKERS, Place, open_copying
from tests.support.working import run_until

SOON = Backoff(initial_s=0.1, maximum_s=0.1)
OURS = "x-idempotent-"
TENANT = {"tenant": "a"}
ORDERS = 4
MAILS = 3
# STOMP's own, which a client writes for each frame.
OF_THE_FRAME = {
    "destination",
    "message-id",
    "ack",
    "subscription",
    "content-length",
    "redelivered",
    "timestamp",
}


@pytest.fixture(params=[*BROKERS, "memory"])
def place(request):
    yield from open_copying(request.param, request)


def wire_headers(message):
    """All headers of a received message, as a client without the library sees them."""
    raw = message.raw
    if hasattr(raw, "properties"):
        return dict(raw.properties.headers or {})
    headers = raw.headers() if callable(raw.headers) else raw.headers
    return {name: value for name, value in dict(headers).items() if name not in OF_THE_FRAME}


class Shop:
    """Orders whose handler sends mails, and mails. Each fails or dies as its plan says, and is done in the end."""

    def __init__(self, place: Place, seed: int = 0) -> None:
        self.place = place
        self.rng = random.Random(seed)
        self.orders, self.mails = place.subject(), place.subject()
        self.checker = MemoryChecker()
        # A group of Kafka's takes a while to get its partitions.
        self.idle_s = 3.0 if place.url.startswith("kafka") else 0.5
        self.registry = Registry()
        self.plans: dict[bytes, list[type[Exception]]] = {}
        self.done: Counter[tuple[str, bytes]] = Counter()
        self.ids: dict[bytes, set[str]] = {}
        self.seen: list[Message] = []
        self.ways: Counter[str] = Counter()
        self._lock = threading.Lock()
        options = {
            "group": GROUP,
            "checker": self.checker,
            "retry_for": (OSError,),
            "max_attempts": 9,
            "backoff": SOON,
        }
        self.consumers = [
            self.registry.consumer(self.orders, **options)(self.on_order),
            self.registry.consumer(self.mails, **options)(self.on_mail),
        ]

    def plan(self, body: bytes) -> None:
        """Some fail at first; some are dead once, and are redriven; some of these fail before or afterwards."""
        kinds = [OSError, ValueError]
        self.plans[body] = [self.rng.choice(kinds) for _ in range(self.rng.choice([0, 1, 1, 2, 3]))]

    def follow(self, message: Message) -> None:
        with self._lock:
            self.seen.append(message)
            self.ids.setdefault(message.body, set()).add(str(message.id))
            plan = self.plans[message.body]
            if plan:
                raise plan.pop()("as planned")

    def on_order(self, message: Message) -> None:
        self.follow(message)
        publisher = self.place.adapter()
        publisher.open([])
        try:
            with self._lock:
                for number in range(MAILS):
                    self.send_on(publisher, message, b"mail %d of %b" % (number, message.body))
                self.done["order", message.body] += 1
        finally:
            publisher.close()

    def on_mail(self, message: Message) -> None:
        self.follow(message)
        with self._lock:
            self.done["mail", message.body] += 1

    def send_on(self, publisher: Adapter, message: Message, body: bytes) -> None:
        """Send a mail with the headers of the order, as everybody does."""
        self.plan(body)
        way = self.rng.choice(["client", "publish", "replaced"])
        self.ways[way] += 1
        name = body.decode()
        if way == "client":
            self.place.send(Message(self.mails, body, id=name, headers=dict(message.headers)))
        elif way == "publish":
            publisher.publish(Message(self.mails, body, id=name, headers=message.headers))
        else:
            publisher.publish(replace(message, subject=self.mails, body=body, id=name))

    def run(self) -> None:
        """Work, and redrive what is dead, until all is done."""
        expected = ORDERS * (1 + MAILS)
        while True:
            run_until(
                self.registry,
                self.place.adapter(),
                lambda: sum(self.done.values()) >= expected or self.is_stuck(),
                concurrency=4,
            )
            if sum(self.done.values()) >= expected:
                return
            for consumer in self.consumers:
                redrive(consumer, self.place.adapter(), idle_s=self.idle_s)

    def is_stuck(self) -> bool:
        """Whether all that is not done is dead."""
        statuses = [record.status for record in self.checker.admin().list(KeyFilter())]
        return len(statuses) == len(self.plans) and {*statuses} <= {KeyStatus.DONE, KeyStatus.DEAD}


def demand(place, seed):
    shop = Shop(place, seed)
    orders = [b"order %d" % number for number in range(ORDERS)]
    for body in orders:
        shop.plan(body)
    place.send(*(Message(shop.orders, body, id=body.decode(), headers=TENANT) for body in orders))
    shop.run()
    mails = [b"mail %d of %b" % (number, body) for body in orders for number in range(MAILS)]
    assert shop.done == Counter(
        {("order", body): 1 for body in orders} | {("mail", body): 1 for body in mails}
    )
    assert shop.ids == {body: {body.decode()} for body in [*orders, *mails]}
    for message in shop.seen:
        assert not [name for name in message.headers if str(name).startswith(OURS)], message.headers
        assert message.headers["tenant"] in {"a", b"a"}


@pytest.mark.parametrize("place", ["activemq", "memory", "rabbitmq"], indirect=True)
def test_each_message_keeps_the_id_that_its_producer_gave(place):
    demand(place, 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2, 7))
def test_each_message_keeps_the_id_that_its_producer_gave_whatever_happens(place, seed):
    demand(place, seed)


def consume(place, subject, handle, is_done, **options):
    registry = Registry()
    registry.consumer(
        subject, group=GROUP, checker=MemoryChecker(), retry_for=(OSError,), backoff=SOON, **options
    )(handle)
    return run_until(registry, place.adapter(), is_done)


@pytest.mark.parametrize("place", BROKERS, indirect=True)
def test_what_a_stranger_sends_on_is_another_message(place):
    """A client without the library passes on all headers of a copy, as it passes on any."""
    orders, mails = place.subject(), place.subject()
    has_ids = place.url.startswith("amqp")  # the other brokers give ids themselves
    copies = []

    def fails_twice(message):
        copies.append(wire_headers(message))
        if len(copies) < 3:
            raise OSError("again")
        raise ValueError("dead")

    place.send(Message(orders, b"order", id="1" if has_ids else None, headers=TENANT))
    consume(place, orders, fails_twice, lambda: place.dead_letters(orders))
    assert f"{OURS}attempt" in copies[1]
    letter = {
        name: each for name, each in place.dead_letters(orders)[0].headers.items() if name not in OF_THE_FRAME
    }
    handled, attempts = [], Counter()

    def mail(message):
        attempts[message.body] += 1
        if message.body == b"dies":
            raise ValueError("dead")
        handled.append(message.body)

    sent = [b"%d of %d" % (number, which) for which in range(2) for number in range(3)]
    for body, headers in zip(sent, [copies[1]] * 3 + [letter] * 3, strict=True):
        place.send(Message(mails, body, id=body.decode() if has_ids else None, headers=headers))
    place.send(Message(mails, b"dies", id="dies" if has_ids else None, headers=letter))
    consume(place, mails, mail, lambda: len(handled) == 6 and place.dead_letters(mails))
    assert sorted(handled) == sorted(sent)
    (dead,) = place.dead_letters(mails)
    assert str(dead.headers[f"{OURS}origin"]).strip("/").removeprefix("queue/").startswith(mails)
    assert dead.headers[f"{OURS}attempt"] == "1"


@pytest.mark.parametrize("place", BROKERS, indirect=True)
def test_copies_of_before_are_understood(place):
    """They did not say for which place they were made."""
    subject, seen = place.subject(), []

    def handle(message):
        seen.append(message.id)
        raise ValueError("dead")

    kafka = place.url.startswith("kafka")
    ours = {f"{OURS}key": "1", f"{OURS}attempt": "4", f"{OURS}origin": f"{subject}/0/7" if kafka else subject}
    place.send(Message(subject, b"", id="1", headers=ours))
    consume(place, subject, handle, lambda: place.dead_letters(subject))
    (letter,) = place.dead_letters(subject)
    assert seen == ["1"]
    assert (letter.id, letter.headers[f"{OURS}attempt"]) == ("1", "5")
    assert letter.headers[f"{OURS}origin"] == ours[f"{OURS}origin"]


def test_a_line_of_a_file_shows_no_header_of_a_copy(tmp_path):
    line = {"id": "1", "headers": {"tenant": "a", f"{OURS}key": "2", f"{OURS}attempt": "1"}}
    (tmp_path / "orders.jsonl").write_text(json.dumps(line) + "\n")
    seen = []
    registry = Registry()
    registry.consumer("orders", checker=MemoryChecker())(seen.append)
    Worker(registry, FileAdapter(tmp_path / "orders.jsonl", subject="orders")).run()
    (message,) = seen
    assert (message.id, dict(message.headers)) == ("1", TENANT)


@pytest.mark.parametrize("place", ["activemq"], indirect=True)
def test_a_copy_that_the_broker_moved_to_the_dead_letters_keeps_its_id(place):
    """As ActiveMQ does with what it has delivered too often: a redrive must find the key of the message."""
    orders, copies, back = place.subject(), [], []

    def fails_once(message):
        copies.append((message.id, wire_headers(message)))
        if len(copies) == 1:
            raise OSError("again")

    place.send(Message(orders, b"order", id=None))
    consume(place, orders, fails_once, lambda: len(copies) == 2)
    place.send(Message(f"{orders}.dead", b"order", id=None, headers=copies[1][1]))
    consumer = Registry().consumer(orders, group=GROUP, checker=MemoryChecker())(lambda _: None)
    assert redrive(consumer, place.adapter(), idle_s=0.5).returned == 1
    consume(place, orders, lambda message: back.append(message.id), lambda: back)
    assert back == [copies[0][0]]
