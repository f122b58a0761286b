"""What Prometheus reads."""

from prometheus_client import CollectorRegistry, generate_latest

from idempotent import Message, Registry
from idempotent.checkers import MemoryChecker
from idempotent.observe import Counters, Event
from idempotent.observe.prometheus import IdempotentCollector
from idempotent.outcomes import Outcome


def exported(*counters):
    registry = CollectorRegistry()
    registry.register(IdempotentCollector(*counters))
    return generate_latest(registry).decode()


def test_outcomes_and_events_are_counters_of_their_own():
    counters = Counters()
    counters.add("orders:billing", Outcome.PROCESSED, 3)
    counters.add("orders:billing", Outcome.DUPLICATE)
    counters.add('odd"name:x', Event.COMPLETION_LOST)
    text = exported(counters)
    assert 'idempotent_outcomes_total{consumer="orders:billing",outcome="processed"} 3.0' in text
    assert 'idempotent_outcomes_total{consumer="orders:billing",outcome="duplicate"} 1.0' in text
    assert 'idempotent_events_total{consumer="odd\\"name:x",event="completion_lost"} 1.0' in text


def test_what_a_consumer_does_is_exported():
    consumer = Registry().consumer("observed", checker=MemoryChecker())(lambda message: None)
    consumer(Message("observed", id="1"))
    consumer.process_many([Message("observed", id="1"), Message("observed", id="2")])
    text = exported()
    assert 'idempotent_outcomes_total{consumer="observed:default",outcome="processed"} 2.0' in text
    assert 'idempotent_outcomes_total{consumer="observed:default",outcome="duplicate"} 1.0' in text
