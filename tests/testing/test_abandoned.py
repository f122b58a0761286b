"""What the death of a process leaves behind, and what each setting of the consumer makes of it, on every store."""

import asyncio
import time

import pytest

from idempotent import Message, Outcome, Registry, current_claim
from idempotent.checkers import MemoryChecker, SqlChecker, TransactionalSqlChecker
from idempotent.claims import ClaimRequest, Lapsed
from idempotent.errors import ConfigurationError, MissingKeyError
from idempotent.testing import abandon_claim

LEASE_S = 600.0


@pytest.fixture
def ran():
    return []


@pytest.fixture
def consumer_over(store, ran):
    def declare(**options):
        return Registry().consumer("orders", checker=store.leased(lease_s=LEASE_S), **options)(ran.append)

    return declare


def order(message_id="1"):
    return Message("orders", id=message_id)


def test_a_claim_that_was_abandoned_holds_its_key_until_its_lease_ends(store, consumer_over, ran):
    consumer = consumer_over()
    claim = abandon_claim(consumer, order())
    assert claim.key == consumer.key_of("1")
    held = consumer.process(order())
    assert held.outcome is Outcome.IN_PROGRESS
    assert 0 < held.retry_after_s <= LEASE_S
    store.age(LEASE_S * 1.1)
    assert consumer.process(order()).outcome is Outcome.PROCESSED
    assert len(ran) == 1


def test_what_was_abandoned_is_parked(store, consumer_over, ran):
    consumer = consumer_over(on_expired_lease="park")
    abandon_claim(consumer, order())
    store.age(LEASE_S * 1.1)
    assert consumer.process(order()).outcome is Outcome.DEAD
    assert ran == []


@pytest.mark.parametrize(("happened", "outcome"), [(True, Outcome.DUPLICATE), (False, Outcome.PROCESSED)])
def test_the_consumer_is_asked_about_what_was_abandoned(store, consumer_over, ran, happened, outcome):
    asked = []
    consumer = consumer_over(on_expired_lease=lambda key: asked.append(key) or happened)
    claim = abandon_claim(consumer, order())
    store.age(LEASE_S * 1.1)
    assert consumer.process(order()).outcome is outcome
    assert asked == [claim.key]
    assert len(ran) == (not happened)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("happened", "outcome"), [(True, Outcome.DUPLICATE), (False, Outcome.PROCESSED)])
def test_a_question_without_an_answer_is_no_death(store, ran, together, happened, outcome, caplog):
    """The other side may be away for longer than five leases."""
    answers = [ConnectionError()] * 6
    deaths = []

    def ask(_):
        if answers:
            raise answers.pop()
        return happened

    @Registry().consumer("orders", checker=store.leased(lease_s=LEASE_S), on_expired_lease=ask)
    def handle(message):
        deaths.append(current_claim().deaths)

    def deliver():
        messages = [order(), order("2")] if together else [order()]
        return handle.process_many(messages)[0] if together else handle.process(messages[0])

    abandon_claim(handle, order())
    for _ in range(6):
        store.age(LEASE_S * 1.1)
        result = deliver()
        assert (result.outcome, result.retry_after_s) == (Outcome.UNAVAILABLE, LEASE_S)
    assert "process_died" not in caplog.text
    deaths.clear()
    store.age(LEASE_S * 1.1)
    assert deliver().outcome is outcome
    assert deaths == ([] if happened else [1])


def test_what_a_consumer_answered_is_out_of_date_when_another_process_died_after_it(store, ran):
    """That process may have had the effect."""
    consumer = None

    def ask(_):
        request = ClaimRequest(consumer.key_of("1"), on_lapsed=Lapsed.TAKE_OVER)
        checker.protocol.abandon(checker.protocol.claim(request).claim)
        store.age(LEASE_S * 1.1)
        return False

    checker = store.leased(lease_s=LEASE_S)
    consumer = Registry().consumer("orders", checker=checker, on_expired_lease=ask)(ran.append)
    abandon_claim(consumer, order())
    store.age(LEASE_S * 1.1)
    assert consumer.process(order()).outcome is Outcome.IN_PROGRESS
    assert ran == []


def test_a_message_is_dead_after_its_deaths(store, consumer_over, ran):
    consumer = consumer_over(max_deaths=2)
    for _ in range(2):
        abandon_claim(consumer, order())
        store.age(LEASE_S * 1.1)
    assert consumer.process(order()).outcome is Outcome.DEAD
    assert ran == []


def test_an_async_consumer_meets_the_lapsed_lease_too(store):
    ran = []

    @Registry().consumer("orders", checker=store.leased(lease_s=LEASE_S))
    async def handle(message):
        ran.append(message.id)

    abandon_claim(handle, order())
    store.age(LEASE_S * 1.1)
    assert asyncio.run(handle.process(order())).outcome is Outcome.PROCESSED
    assert ran == ["1"]


def test_a_checker_with_a_short_lease_may_leave_the_claim_for_one_with_a_long_lease(database):
    registry, url, ran = Registry(), f"sqlite:///{database}", []
    registry.checker("keys", SqlChecker(url, lease_s=LEASE_S))
    consumer = registry.consumer("orders", checker="keys", on_expired_lease="park")(ran.append)
    short = SqlChecker(url, lease_s=0.05)
    with registry.override("keys", short):
        abandon_claim(consumer, order())
    time.sleep(0.2)
    assert consumer.process(order()).outcome is Outcome.DEAD, "something renews the claim"
    short.close()
    assert consumer.process(order("2")).outcome is Outcome.PROCESSED
    registry.close()


def test_a_claim_without_a_lease_waits_for_a_person():
    checker = MemoryChecker(lease_s=None)
    consumer = Registry().consumer("orders", checker=checker)(lambda _: None)
    abandon_claim(consumer, order())
    assert consumer.process(order()).outcome is Outcome.IN_PROGRESS
    assert checker.admin().reopen(checker.admin().get(consumer.key_of("1")))
    assert consumer.process(order()).outcome is Outcome.PROCESSED


def test_what_cannot_be_abandoned_is_refused(database):
    consumer = Registry().consumer("orders", checker=MemoryChecker())(lambda _: None)
    with pytest.raises(MissingKeyError):
        abandon_claim(consumer, order(None))
    consumer.process(order())
    with pytest.raises(ValueError, match=r"orders:default:1 is duplicate"):
        abandon_claim(consumer, order())
    transactional = TransactionalSqlChecker(f"sqlite:///{database}")
    with pytest.raises(ConfigurationError, match="leaves no claim behind"):
        abandon_claim(Registry().consumer("orders", checker=transactional)(lambda _: None), order())
    transactional.close()
