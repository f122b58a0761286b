"""Nobody runs a message whose handler failed before its backoff is over, however often it was sent."""

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from idempotent import Action, Backoff, Message, Outcome, Registry
from idempotent.admin import KeyFilter
from idempotent.errors import DeadKeyError
from tests.support.stores import ALL, SQL, open_store

MAX_ATTEMPTS = 3
BACKOFF = Backoff(initial_s=600.0, maximum_s=900.0)
PLACES = [(kind, "leased") for kind in ALL] + [(kind, "transactional") for kind in SQL]
# So long that two draws do not agree by chance, to a minute.
JITTERED = Backoff(initial_s=1e6, maximum_s=2e6, jitter=0.9)
IDS = ("a", "b", "c")
STEPS = 40


def received(message_id):
    return Message("orders", id=message_id, position=1)


class Outage:
    """A consumer that fails while its effect is away, and what the model knows of its messages."""

    def __init__(self, store, checker, *, backoff=BACKOFF, max_attempts=MAX_ATTEMPTS):
        self.store, self.broken, self.now_s = store, True, 0.0
        self.ran, self.attempts, self.retry_at = [], Counter(), Counter()
        self.final = {}
        registry = Registry()
        options = {"checker": checker, "max_attempts": max_attempts, "backoff": backoff}

        @registry.consumer("orders", **options)
        def ship(message):
            self.ran.append(message.id)
            if self.broken:
                raise ConnectionError("away")

        self.ship = ship

    def deliver(self, ids):
        self.ran = []
        results = self.ship.process_many([received(each) for each in ids])
        for each in set(self.ran):
            assert each not in self.final
            assert self.retry_at[each] <= self.now_s, "it ran before its backoff was over"
        for each, result in zip(ids, results, strict=True):
            self.settle(each, result)

    def settle(self, each, result):
        if each in self.final:
            assert result.outcome is self.final[each]
        elif result.outcome is Outcome.IN_PROGRESS:
            assert self.retry_at[each] > self.now_s, "nothing holds it"
            assert 0 < result.retry_after_s <= self.retry_at[each] - self.now_s
            assert result.action is (Action.DELAY if result.retry_after_s > 5.0 else Action.HOLD)
        elif result.outcome is Outcome.PROCESSED:
            self.final[each] = Outcome.DUPLICATE
        else:
            self.attempts[each] += 1
            dead = self.attempts[each] == MAX_ATTEMPTS
            assert (result.outcome, result.attempt) == (
                Outcome.DEAD if dead else Outcome.FAILED,
                self.attempts[each],
            )
            assert not isinstance(result.error, DeadKeyError)
            if dead:
                self.final[each] = Outcome.DEAD
            self.retry_at[each] = self.now_s + BACKOFF.delay_s(self.attempts[each])

    def wait(self, seconds):
        self.store.age(seconds)
        self.now_s += seconds


@pytest.mark.parametrize(("kind", "guarantee"), PLACES)
def test_copies_of_a_message_neither_hurry_nor_kill_it(kind, guarantee, request):
    """Random deliveries, alone and in groups, with copies, through outages."""
    for store in open_store(kind, request, reuse=True):
        chosen = random.Random(kind + guarantee)
        outage = Outage(store, getattr(store, guarantee)())
        for _ in range(STEPS):
            outage.broken = chosen.random() < 0.9
            outage.deliver(chosen.choices(IDS, k=chosen.choice([1, 1, 2, 4])))
            outage.wait(chosen.choice([0.0, 0.0, 10.0, 595.0, 610.0]))
        assert outage.final
        assert outage.attempts.total() > MAX_ATTEMPTS


@pytest.mark.parametrize("size", [1, 6])
@pytest.mark.parametrize(("kind", "guarantee"), PLACES)
def test_the_store_and_the_broker_wait_equally_long_however_the_backoff_is_shortened(
    kind, guarantee, size, request
):
    """A broker that is quicker meets a key that is not free; after its own wait each message runs, and counts."""
    for store in open_store(kind, request, reuse=True):
        checker = getattr(store, guarantee)(retention_s=1e8)
        outage = Outage(store, checker, backoff=JITTERED, max_attempts=100)
        sent = [received(f"id-{number}") for number in range(size)]
        named = []
        for attempt in range(1, 7):
            results = outage.ship.process_many(sent)
            assert [result.attempt for result in results] == [attempt] * size
            waits_s = [result.retry_after_s for result in results]
            named += waits_s
            records = {record.text.rpartition(":")[2]: record for record in checker.admin().list(KeyFilter())}
            for message, wait_s in zip(sent, waits_s, strict=True):
                record = records[message.id]
                assert -1 < wait_s - (record.lease_until_us - record.now_us) / 1e6 < 60
            store.age(min(waits_s) - 60)
            assert {each.outcome for each in outage.ship.process_many(sent)} == {Outcome.IN_PROGRESS}
            store.age(max(waits_s) - min(waits_s) + 61)
        longest = [JITTERED.longest_s(attempt) for attempt in range(1, 7) for _ in sent]
        shares = [wait_s / most_s for wait_s, most_s in zip(named, longest, strict=True)]
        assert all(0.1 <= share <= 1 for share in shares)
        assert len({round(share, 6) for share in shares}) > len(shares) / 2


@pytest.mark.parametrize(("kind", "guarantee"), PLACES)
def test_a_message_is_not_sent_away_for_as_long_as_the_clock_of_the_store_went_back(kind, guarantee, request):
    """Else it would wait in the broker when the clock is right again, where nobody looks for it."""
    for store in open_store(kind, request, reuse=True):
        outage = Outage(store, getattr(store, guarantee)())
        assert outage.ship.process(received("a")).outcome is Outcome.FAILED
        store.age(-86400.0)
        waiting = outage.ship.process(received("a"))
        assert (waiting.outcome, waiting.retry_after_s) == (Outcome.IN_PROGRESS, BACKOFF.maximum_s)
        assert outage.ran == ["a"]


@pytest.mark.parametrize("kind", ALL)
def test_who_calls_with_a_message_of_his_own_tries_again_when_he_likes(kind, request):
    for store in open_store(kind, request, reuse=True):
        outage = Outage(store, store.leased())
        own = Message("orders", id="1")
        assert [outage.ship.process(own).attempt for _ in range(2)] == [1, 2]
        outage.broken = False
        assert outage.ship.process_many([own, received("2")])[0].outcome is Outcome.PROCESSED


@pytest.mark.parametrize("others", ["threads", "processes"])
@pytest.mark.parametrize("kind", SQL)
def test_copies_that_wait_for_the_transaction_that_fails_do_not_use_up_its_attempts(kind, others, request):
    """They get the key by its rollback. Only in the process of the failure they know at once that they may not run.

    Another process has a checker of its own.
    """
    for store in open_store(kind, request, reuse=True):
        copies = 4
        ran, started = [], threading.Event()
        checkers = [store.transactional() for _ in range(copies if others == "processes" else 1)]

        def consumer(checker, ran=ran, started=started):
            registry = Registry()

            @registry.consumer("orders", checker=checker, max_attempts=MAX_ATTEMPTS, backoff=BACKOFF)
            def ship(message):
                ran.append(message.id)
                started.set()
                threading.Event().wait(0.3)  # until the others wait for the key
                raise ConnectionError("away")

            return ship

        consumers = [consumer(checker) for checker in checkers]

        def deliver(number, consumers=consumers, started=started):
            if number:
                started.wait(30)
            return consumers[number % len(consumers)].process(received("1"))

        with ThreadPoolExecutor(copies) as pool:
            results = list(pool.map(deliver, range(copies)))
        outcomes = Counter(result.outcome for result in results)
        assert set(outcomes) <= {Outcome.FAILED, Outcome.IN_PROGRESS, Outcome.UNAVAILABLE}
        if others == "threads":
            assert ran == ["1"]
            assert outcomes[Outcome.FAILED] == 1
        again = consumers[0].process(received("1"))
        assert again.outcome is Outcome.IN_PROGRESS
        store.age(BACKOFF.maximum_s + 1)
        assert consumers[0].process(received("1")).attempt == 2
