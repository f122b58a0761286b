"""Headers and properties that pika cannot decode: one message is rejected with the reason, and the others run."""

import struct
from dataclasses import dataclass

import pika
import pytest

from idempotent import Message, Registry, Worker
from idempotent.adapters.rabbitmq.reading import fault_in, readable_properties
from idempotent.checkers import MemoryChecker
from idempotent.redrive import Redriven, redrive
from tests.adapters.rabbitmq.member import run_for
from tests.adapters.rabbitmq.rabbit import SOON, receive

MILLISECONDS = b"T" + struct.pack(">Q", 1_790_000_000_000)
DEEP = 2000


def nested(depth):
    value = b"V"
    for _ in range(depth):
        value = b"A" + struct.pack(">I", len(value)) + value
    return value


UNREADABLE = {
    "a timestamp in milliseconds": MILLISECONDS,
    "the latest timestamp": b"T" + b"\xff" * 8,
    "a timestamp in a list in a table": (
        b"F" + struct.pack(">I", 17) + b"\x02at" + b"A" + struct.pack(">I", 9) + MILLISECONDS
    ),
    "lists in lists": nested(DEEP),
}


class Raw(pika.BasicProperties):
    """Properties with headers whose values are encoded already."""

    def __init__(self, id, **headers):
        super().__init__(message_id=id)
        self.raw = b"".join(bytes([len(name)]) + name.encode() + value for name, value in headers.items())

    def encode(self):
        name = self.message_id.encode()
        flags = self.FLAG_HEADERS | self.FLAG_MESSAGE_ID
        return [struct.pack(">HI", flags, len(self.raw)), self.raw, bytes([len(name)]), name]


def float32(value):
    return b"f" + struct.pack(">f", value)


def double(value):
    return b"d" + struct.pack(">d", value)


def text(value):
    return b"S" + struct.pack(">I", len(value)) + value.encode()


@pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE)
def test_a_header_that_cannot_be_read_rejects_its_message_and_no_other(rabbit, queue, value):
    with rabbit.channel() as channel:
        rabbit.publish(channel, queue, b"whole", Raw("bad", colour=text("red"), odd=value, size=text("L")))
        rabbit.publish(channel, queue, b"", pika.BasicProperties(message_id="good"))
    done = []
    registry = Registry()
    registry.consumer(queue, group="g", checker=MemoryChecker())(lambda message: done.append(message.id))
    worker = Worker(registry, rabbit.adapter(), gc_interval_s=None)
    run_for(worker, lambda: done and rabbit.depth(f"{queue}.dead"))
    assert done == ["good"]
    (letter,) = rabbit.look(f"{queue}.dead")
    assert (letter.id, letter.body) == ("bad", b"whole")
    assert (letter.headers["colour"], letter.headers["size"]) == ("red", "L")
    # What pika cannot read is kept as the bytes that it was.
    assert letter.headers["odd"] == value
    assert letter.headers["x-idempotent-outcome"] == "rejected"
    assert "cannot be read: header 'odd'" in letter.headers["x-idempotent-reason"]
    assert rabbit.depth(queue) == 0


@dataclass
class Order:
    cents: int


def test_a_body_that_does_not_fit_is_a_dead_letter_with_the_field_and_no_attempt(rabbit, queue):
    rabbit.send(
        Message(queue, b'{"cents": "a secret"}', id="bad"), Message(queue, b'{"cents": 5}', id="good")
    )
    done = []
    registry = Registry()

    @registry.consumer(queue, group="g", checker=MemoryChecker())
    def handle(order: Order, message: Message) -> None:
        done.append((order, message.id))

    run_for(
        Worker(registry, rabbit.adapter(), gc_interval_s=None), lambda: done and rabbit.depth(f"{queue}.dead")
    )
    assert done == [(Order(5), "good")]
    (letter,) = rabbit.look(f"{queue}.dead")
    assert (letter.id, letter.body) == ("bad", b'{"cents": "a secret"}')
    assert letter.headers["x-idempotent-outcome"] == "rejected"
    assert "does not fit Order: Expected `int`, got `str` at cents" in letter.headers["x-idempotent-reason"]
    assert "secret" not in letter.headers["x-idempotent-reason"]
    assert rabbit.depth(queue) == 0


@pytest.mark.parametrize("options", [{"pull": True}, {"ack": "auto"}, {"ack": "batched"}], ids=str)
def test_so_it_is_in_every_way_of_consuming(rabbit, queue, opened, options):
    adapter = opened(queue, **options)
    with rabbit.channel() as channel:
        rabbit.publish(channel, queue, b"", Raw("bad", at=MILLISECONDS))
        rabbit.publish(channel, queue, b"", pika.BasicProperties(message_id="good"))
    bad, good = receive(adapter, 2)
    assert (bad.message.id, good.message.id) == ("bad", "good")
    assert "header 'at'" in str(bad.error)
    assert good.error is None


@pytest.mark.parametrize("options", [{}, {"pull": True}], ids=str)
def test_numbers_with_fractions_are_not_cut(rabbit, queue, opened, options):
    adapter = opened(queue, **options)
    numbers = {"single": float32(1.5), "double": double(1.7), "whole": b"l" + struct.pack(">q", 2**40)}
    with rabbit.channel() as channel:
        rabbit.publish(channel, queue, b"", Raw("1", **numbers))
        rabbit.publish(channel, queue, b"", Raw("2", single=float32(2.0)))
    first, second = receive(adapter, 2)
    assert dict(first.message.headers) == {"single": 1.5, "double": 1.7, "whole": 2**40}
    assert isinstance(second.message.headers["single"], float)


def test_a_copy_has_the_decimals_of_its_original(rabbit, queue):
    numbers = {
        "amount": b"D\2" + struct.pack(">i", 110),
        "debt": b"D\3" + struct.pack(">i", -500),
        "whole": b"D\0\0\0\0\7",
    }
    nested = b"A" + struct.pack(">I", 6) + numbers["amount"]
    with rabbit.channel() as channel:
        rabbit.publish(channel, queue, b"", Raw("1", **numbers, list=nested))
    seen = []
    registry = Registry()

    @registry.consumer(queue, group="g", checker=MemoryChecker(), backoff=SOON)
    def handle(message: Message) -> None:
        seen.append({name: str(message.headers[name]) for name in (*numbers, "list")})
        if len(seen) == 1:
            raise ValueError("not now")

    run_for(Worker(registry, rabbit.adapter(), gc_interval_s=None), lambda: len(seen) == 2)
    assert (
        seen[0] == seen[1] == {"amount": "1.10", "debt": "-0.500", "whole": "7", "list": "[Decimal('1.10')]"}
    )


def test_an_id_that_is_neither_text_nor_a_whole_number_rejects_its_message(rabbit, queue):
    ids = [double(1.2), double(1.7), b"t\1", b"V", b"A" + struct.pack(">I", 0), b"D\2\0\0\0\7"]
    with rabbit.channel() as channel:
        for number, key in enumerate(ids):
            headers = {"x-idempotent-key": key, "number": text(str(number))}
            rabbit.publish(channel, queue, b"", Raw("", **headers))
        rabbit.publish(channel, queue, b"", Raw("", **{"x-idempotent-key": b"l" + struct.pack(">q", 7)}))
    done = []
    registry = Registry()
    registry.consumer(queue, group="g", checker=MemoryChecker())(lambda message: done.append(message.id))
    worker = Worker(registry, rabbit.adapter(), gc_interval_s=None)
    run_for(worker, lambda: done and rabbit.depth(f"{queue}.dead") == len(ids))
    assert done == ["7"]
    letters = rabbit.look(f"{queue}.dead")
    assert sorted(letter.headers["number"] for letter in letters) == ["0", "1", "2", "3", "4", "5"]
    reasons = {letter.headers["number"]: letter.headers["x-idempotent-reason"] for letter in letters}
    assert all("a key must be str, bytes, int or UUID, not" in reasons[number] for number in "01245")
    assert letters[0].headers["x-idempotent-key"] == "1.2"


def test_a_letter_that_another_client_made_and_that_cannot_be_read_stays_as_it_is(rabbit, queue, opened):
    opened(queue).close()
    with rabbit.channel() as channel:
        rabbit.publish(channel, f"{queue}.dead", b"whole", Raw("bad", at=MILLISECONDS))
    consumer = Registry().consumer(queue, group="g", checker=MemoryChecker())(lambda _: None)
    assert redrive(consumer, rabbit.adapter(), limit=1, idle_s=10) == Redriven(left=1, unreadable=1)
    assert rabbit.depth(queue) == 0
    again = rabbit.adapter()
    again.open([Registry().consumer(f"{queue}.dead", group="g", checker=MemoryChecker())(lambda _: None)])
    (letter,) = receive(again, 1)
    again.close()
    assert (letter.message.id, letter.message.headers["at"]) == ("bad", MILLISECONDS)
    assert letter.error is not None


@pytest.mark.slow
def test_a_redrive_brings_back_a_message_that_can_be_read(rabbit, queue):
    with rabbit.channel() as channel:
        rabbit.publish(channel, queue, b"", Raw("bad", at=MILLISECONDS))
    done = []
    registry = Registry()

    @registry.consumer(queue, group="g", checker=MemoryChecker())
    def handle(message: Message) -> None:
        done.append((message.id, message.headers["at"]))

    run_for(Worker(registry, rabbit.adapter(), gc_interval_s=None), lambda: rabbit.depth(f"{queue}.dead"))
    assert redrive(handle, rabbit.adapter(), idle_s=3.0).returned == 1
    run_for(Worker(registry, rabbit.adapter(), gc_interval_s=None), lambda: done)
    assert done == [("bad", MILLISECONDS)]


@pytest.mark.parametrize("value", [b"?x", b"S\0"])
def test_what_a_broker_would_not_take_is_readable_too(value):
    encoded = b"".join(Raw("1", odd=value).encode())
    properties = readable_properties(encoded)
    assert "header 'odd'" in fault_in(properties) or "properties" in fault_in(properties)


def test_properties_that_cannot_be_read_at_all_have_a_fault_and_no_values():
    cut_off = struct.pack(">H", pika.BasicProperties.FLAG_HEADERS) + struct.pack(">I", 100) + b"\x01aZ"
    for encoded in (b"", cut_off, struct.pack(">H", pika.BasicProperties.FLAG_TIMESTAMP) + b"\0"):
        properties = readable_properties(encoded)
        assert fault_in(properties)
        assert properties.message_id is None
    assert fault_in(pika.BasicProperties()) is None
