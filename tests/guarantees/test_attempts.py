"""A handler that asks which attempt it is hears the number that its failure gets, or None."""

import asyncio
import random
from collections import Counter

import pytest
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from idempotent import Backoff, Message, Outcome, Registry, current_claim
from idempotent.claims import ClaimRequest, Guarantee
from idempotent.errors import OutboxError
from idempotent.keys import KeySpace
from tests.support.stores import ALL, ASYNC, SQL, open_store

MAX_ATTEMPTS = 4
BACKOFF = Backoff(initial_s=600.0, maximum_s=1200.0, jitter=0.5)
PLACES = [(kind, "leased") for kind in ALL] + [(kind, "transactional") for kind in SQL]
AWAITED = [(kind, "leased") for kind in ALL] + [(kind, "transactional") for kind in ASYNC]
IDS = tuple("abcdef")
STEPS = 40


class Asked:
    """A consumer whose handler asks for its attempt, and then does what is planned."""

    def __init__(self, store, checker, *, backoff=BACKOFF, loop=None, max_attempts=MAX_ATTEMPTS):
        self.store, self.plan, self.said = store, {}, {}
        self.attempts, self.final = Counter(), set()
        registry = Registry()
        options = {"checker": checker, "max_attempts": max_attempts, "backoff": backoff}
        self.is_leased = checker.guarantee is Guarantee.LEASED

        def act(message):
            claim = current_claim()
            self.said[message.id] = claim.attempt, claim.is_last_attempt
            if error := self.plan.get(message.id):
                raise error

        def with_connection(message, connection: Connection):
            act(message)

        async def later(message):
            act(message)

        async def later_with_connection(message, connection: AsyncConnection):
            act(message)

        handlers = ((act, with_connection), (later, later_with_connection))
        self.consumer = registry.consumer("orders", **options)(handlers[loop is not None][not self.is_leased])
        self.loop = loop

    def process_many(self, messages):
        answer = self.consumer.process_many(messages)
        return self.loop.run(answer) if self.loop else answer

    def deliver(self, messages, plan):
        """Check what the handlers heard against what the results say."""
        self.plan, self.said = plan, {}
        for sent, result in zip(messages, self.process_many(messages), strict=True):
            if sent.id not in self.said:
                assert result.outcome in {Outcome.IN_PROGRESS, Outcome.DUPLICATE, Outcome.DEAD}
                continue
            said, is_last = self.said[sent.id]
            if result.outcome in {Outcome.FAILED, Outcome.DEAD}:
                # A transaction's failure does not count if another's backoff began after its claim.
                counts = {1} if self.is_leased else {0, 1}
                assert result.attempt - self.attempts[sent.id] in counts
                self.attempts[sent.id] = result.attempt
                assert said in {None, result.attempt}
                assert is_last in {None, result.outcome is Outcome.DEAD}
            else:
                assert said in {None, self.attempts[sent.id] + 1}
                assert is_last in {None, self.attempts[sent.id] + 1 == MAX_ATTEMPTS}
            if result.outcome in {Outcome.PROCESSED, Outcome.DEAD}:
                self.final.add(sent.id)
            yield sent.id, said


def received(message_id):
    return Message("orders", id=message_id, position=1)


def run_randomly(store, checker, chosen, **options):
    asked = Asked(store, checker, **options)
    heard = []
    for _ in range(STEPS):
        ids = chosen.sample(IDS, chosen.choice([1, 1, 2, 5]))
        errors = (ConnectionError("away"),) * 4 + (OutboxError("no tables"), None)
        plan = {each: chosen.choice(errors) for each in ids}
        heard += [said for _, said in asked.deliver([received(each) for each in ids], plan)]
        store.age(chosen.choice([0.0, 100.0, 1300.0]))
    assert asked.final
    assert {2, 3} <= set(heard)


@pytest.mark.parametrize("savepoints", [False, True])
@pytest.mark.parametrize(("kind", "guarantee"), PLACES)
def test_a_handler_never_hears_a_wrong_attempt(kind, guarantee, savepoints, request):
    """Deliveries, alone and in groups, that fail, give up or succeed."""
    if savepoints and guarantee == "leased":
        pytest.skip("savepoints are of a transaction")
    for store in open_store(kind, request, reuse=True):
        checker = (
            store.transactional(savepoints=savepoints) if guarantee == "transactional" else store.leased()
        )
        run_randomly(store, checker, random.Random(kind + guarantee))


@pytest.mark.parametrize(("kind", "guarantee"), AWAITED)
def test_a_task_never_hears_a_wrong_attempt(kind, guarantee, request):
    for store in open_store(kind, request, reuse=True):
        checker = store.leased() if guarantee == "leased" else store.transactional(store.async_engine())
        with asyncio.Runner() as loop:
            run_randomly(store, checker, random.Random(kind + guarantee), loop=loop)


@pytest.mark.parametrize(("kind", "guarantee"), PLACES)
def test_a_retry_knows_its_attempt_and_whether_it_is_the_last(kind, guarantee, request):
    for store in open_store(kind, request, reuse=True):
        for size in (1, 3):
            asked = Asked(store, getattr(store, guarantee)())
            sent = [received(f"{size}-{number}") for number in range(size)]
            for attempt in range(1, MAX_ATTEMPTS + 1):
                broken = {each.id: ConnectionError("away") for each in sent}
                said = None if attempt == 1 else attempt
                assert {heard for _, heard in asked.deliver(sent, broken)} == {said}
                last = None if attempt == 1 else attempt == MAX_ATTEMPTS
                assert {is_last for _, is_last in asked.said.values()} == {last}
                store.age(1300.0)
            assert asked.final == {each.id for each in sent}


@pytest.mark.parametrize("kind", ALL)
def test_deaths_are_no_attempts(kind, request):
    for store in open_store(kind, request, reuse=True):
        checker = store.leased(lease_s=60.0)
        asked = Asked(store, checker)
        key = KeySpace("orders", "default").key("1")
        asked.plan["1"] = ConnectionError("away")
        for attempt in (1, 2):
            checker.protocol.abandon(checker.protocol.claim(ClaimRequest(key)).claim)
            store.age(100.0)
            assert [result.attempt for result in asked.process_many([received("1")])] == [attempt]
            store.age(1300.0)


@pytest.mark.parametrize("kind", SQL)
def test_deaths_without_leases_are_no_attempts(kind, request):
    for store in open_store(kind, request, reuse=True):
        asked = Asked(store, store.transactional())
        key = KeySpace("orders", "default").key("1")
        asked.plan["1"] = ConnectionError("away")
        for attempt in (1, 2):
            store.note_death(key)
            again = Message("orders", id="1", position=1, redelivered=True)
            assert [result.attempt for result in asked.process_many([again])] == [attempt]
            assert asked.said["1"] == ((None, None) if attempt == 1 else (2, False))
            store.age(1300.0)
