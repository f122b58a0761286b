"""Subjects that name no single queue or topic: they connect and receive nothing, or too much, so they are refused."""

import pytest

from idempotent import Message
from idempotent.adapters.activemq import StompAdapter
from idempotent.errors import AdapterError, ConfigurationError
from tests.adapters.activemq.member import receive, send
from tests.adapters.activemq.opening import opened

SEVERAL = ["orders.>", "orders.*", "*", "/topic/prices.>", "a,b", "/queue/a,/queue/b", "a,topic://b"]
OTHER_KINDS = [
    "/temp-queue/a",
    "/dsub/a",
    "queue://a",
    "/queue/topic://a",
    "a?consumer.prefetchSize=1",
    "/queue/",
    "/topic/ ",
]


def refusals():
    several = r"names several destinations; write a consumer for each one, or .*compositeQueue"
    other = r"is not the name of a queue or topic; write NAME, /queue/NAME or /topic/NAME"
    return [(subject, several) for subject in SEVERAL] + [(subject, other) for subject in OTHER_KINDS]


@pytest.mark.parametrize(("subject", "match"), refusals())
def test_a_subject_that_is_not_one_destination_is_refused_at_the_start(subject, match):
    with pytest.raises(ConfigurationError, match=match), opened("stomp://127.0.0.1:1", subject):
        pass
    with pytest.raises(ConfigurationError, match=match):
        StompAdapter("stomp://127.0.0.1:1", dead_letter_destination=subject)
    with opened("stomp://127.0.0.1:1", "orders") as adapter, pytest.raises(AdapterError, match=match):
        adapter.publish(Message(subject))


@pytest.mark.parametrize("subject", ["{}.a>b", "{}.a*b", "{}:a", "/queue/{}.a b", "{}/a"])
def test_a_name_that_only_looks_special_works(stomp_url, name, subject):
    subject = subject.format(name)
    with opened(stomp_url, subject) as adapter:
        send(stomp_url, subject.removeprefix("/queue/"), "a")
        adapter.publish(Message(subject, id="b"))
        assert {delivery.message.id for delivery in receive(adapter, 2)} == {"a", "b"}
