"""What Prometheus reads."""

import re

from prometheus_client import CollectorRegistry, generate_latest

from idempotent import Message, Registry
from idempotent.checkers import MemoryChecker
from idempotent.observe import Counters, Event
from idempotent.observe.prometheus import IdempotentCollector
from idempotent.outcomes import Outcome
from tests.support.hooks import answering, unreachable


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


def test_all_series_of_a_declared_consumer_begin_at_0():
    before, after = Counters(), Counters()
    registry = Registry(observers=[before])
    registry.consumer("quiet", checker=MemoryChecker())(lambda message: None)
    registry.observers.add(after)
    for counters in (before, after):
        text = exported(counters)
        for outcome in Outcome:
            assert f'outcomes_total{{consumer="quiet:default",outcome="{outcome.value}"}} 0.0' in text
        for event in Event:
            assert f'events_total{{consumer="quiet:default",event="{event.value}"}} 0.0' in text


def test_a_long_consumer_has_one_label_for_all_its_messages():
    """Also for a completion that is recorded late, of which only the key is known."""
    now = [1e9]
    checker = MemoryChecker(lease_s=1, clock=lambda: now[0])
    consumer = Registry().consumer("t" * 249, group="g" * 249, checker=checker)(lambda message: None)
    for number in range(3):
        one = Message("t" * 249, id=str(number))
        with answering(checker, _complete=unreachable):
            assert consumer.process(one).outcome is Outcome.UNAVAILABLE
        now[0] += 2
        requests = consumer.binding.requests
        checker._claim(requests.after_a_death(requests.of(one)))  # another process takes the key over
        assert consumer.process(one).outcome is not Outcome.PROCESSED
    text = exported()
    labels = set(re.findall(r'consumer="(t{20}[^"]*)"', text))
    assert labels == {consumer.name}
    assert f'{{consumer="{consumer.name}",event="completion_lost"}} 3.0' in text
