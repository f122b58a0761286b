"""Dead letters go back and run."""

import threading
import time
from collections import Counter

import pytest

from idempotent import Message, Outcome, Registry, Worker
from idempotent.adapters.files import FileAdapter
from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.checkers.memory import MemoryKeyAdmin
from idempotent.claims import ClaimRequest, Failure, KeyStatus
from idempotent.errors import AdapterError, ConfigurationError
from idempotent.keys import KeySpace
from idempotent.redrive import Dropped, Letter, LetterFilter, Redriven, drop, letters, redrive
from tests.support.kinds import KINDS, as_plain

ORDERS = KeySpace("orders", "billing")


class Shop:
    """A consumer that refuses some messages, and a broker whose messages it has had."""

    def __init__(self, *bad: str, checker: MemoryChecker | None = None, kind=as_plain, **options) -> None:
        self.broker = MemoryBroker()
        self.checker = checker or MemoryChecker()
        self.registry = Registry()
        self.bad = set(bad)
        self.done: list[str] = []
        self.runs: Counter[str] = Counter()
        self.consumer = self.registry.consumer(
            "orders", group="billing", checker=self.checker, max_attempts=1, **options
        )(kind(self.handle))

    def handle(self, message: Message) -> None:
        self.runs[str(message.id)] += 1
        if message.id in self.bad:
            raise ValueError("no such customer")
        self.done.append(str(message.id))

    def deliver(self, *ids: str | None):
        for name in ids:
            self.broker.publish(Message("orders", b"body", id=name, headers={"colour": "red"}))
        return Worker(self.registry, MemoryAdapter(self.broker, until_empty=True)).run()

    def redrive(self, **options) -> Redriven:
        return redrive(self.consumer, MemoryAdapter(self.broker), idle_s=0.3, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_dead_letters_go_back_and_run(kind):
    shop = Shop("1", "2", kind=kind)
    assert shop.deliver("1", "2", "3")[Outcome.DEAD] == 2
    shop.bad.clear()
    seen = []
    assert shop.redrive(on_letter=seen.append) == Redriven(returned=2, reopened=2)
    assert [one.returned for one in seen] == [1, 2]
    assert shop.broker.dead_letters("orders") == []
    assert shop.deliver()[Outcome.PROCESSED] == 2
    assert sorted(shop.done) == ["1", "2", "3"]


def test_a_letter_goes_back_as_the_message_it_was():
    shop = Shop("1")
    shop.deliver("1")
    shop.redrive()
    adapter = MemoryAdapter(shop.broker)
    adapter.open([shop.consumer])
    (delivery,) = adapter.receive(1, 1.0)
    assert (delivery.message.id, delivery.message.body) == ("1", b"body")
    assert dict(delivery.message.headers) == {"colour": "red"}


def test_what_is_still_refused_dies_again():
    shop = Shop("1")
    shop.deliver("1")
    shop.redrive()
    assert shop.deliver()[Outcome.DEAD] == 1
    (letter,) = shop.broker.dead_letters("orders")
    assert letter.reason == "ValueError: no such customer"


def test_a_letter_whose_effect_happened_goes_back_and_is_a_duplicate():
    shop = Shop("1")
    shop.deliver("1")
    admin = shop.checker.admin()
    assert admin.mark_done(admin.get(ORDERS.key("1")))
    assert shop.redrive() == Redriven(returned=1, reopened=0)
    assert shop.deliver()[Outcome.DUPLICATE] == 1
    assert shop.done == []


def test_a_letter_without_a_key_stays():
    shop = Shop("1")
    shop.deliver("1", None)
    assert shop.redrive() == Redriven(returned=1, reopened=1, left=1)
    (letter,) = shop.broker.dead_letters("orders")
    assert letter.message.id is None


def test_a_letter_without_a_key_goes_back_once_the_consumer_finds_a_key_in_it():
    shop = Shop()
    assert shop.deliver(None)[Outcome.REJECTED] == 1
    found = Shop(key=lambda message: message.id or message.body)
    found.broker = shop.broker
    assert found.redrive() == Redriven(returned=1)
    assert found.deliver()[Outcome.PROCESSED] == 1
    assert shop.broker.dead_letters("orders") == []


def test_no_more_than_the_limit_go_back():
    shop = Shop("1", "2", "3")
    shop.deliver("1", "2", "3")
    assert shop.redrive(limit=2).returned == 2
    assert len(shop.broker.dead_letters("orders")) == 1


def test_a_broker_that_does_not_take_the_message_leaves_the_letter():
    shop = Shop("1")
    shop.deliver("1")

    class Full(MemoryAdapter):
        def publish(self, message):
            raise AdapterError("the broker is full")

    with pytest.raises(AdapterError, match="full"):
        redrive(shop.consumer, Full(shop.broker), idle_s=0.3)
    assert len(shop.broker.dead_letters("orders")) == 1
    assert shop.checker.admin().get(ORDERS.key("1")) is None, "its key is open, and that harms nobody"
    assert shop.redrive() == Redriven(returned=1, reopened=0)


def test_a_key_that_changes_meanwhile_keeps_its_letter():
    class Changed(MemoryKeyAdmin):
        def reopen(self, record):
            return False

    class Busy(MemoryChecker):
        def admin(self):
            return Changed(self)

    shop = Shop("1", checker=Busy())
    shop.deliver("1")
    assert shop.redrive() == Redriven(left=1, changed=("orders:billing:1",))
    assert len(shop.broker.dead_letters("orders")) == 1
    assert shop.checker.admin().get(ORDERS.key("1")).status is KeyStatus.DEAD


def test_a_file_keeps_no_letters_that_could_go_back(tmp_path):
    shop = Shop()
    with pytest.raises(ConfigurationError, match="FileAdapter cannot receive dead letters"):
        redrive(shop.consumer, FileAdapter(tmp_path / "orders.jsonl"))


def test_a_message_whose_effect_is_unknown_stays_until_a_person_includes_it():
    now = [1000.0]
    shop = Shop(checker=MemoryChecker(lease_s=10.0, clock=lambda: now[0]), on_expired_lease="park")
    shop.checker._claim(shop.consumer.binding.requests.of(Message("orders", id="1")))  # and its process dies
    now[0] += 11
    assert shop.deliver("1")[Outcome.DEAD] == 1
    assert shop.redrive() == Redriven(left=1, unknown=1)
    assert len(shop.broker.dead_letters("orders")) == 1
    assert shop.checker.admin().get(ORDERS.key("1")).status is KeyStatus.DEAD
    assert shop.redrive(include_unknown=True) == Redriven(returned=1, reopened=1)
    shop.deliver()
    assert shop.done == ["1"]


def test_beside_a_running_worker_it_takes_what_was_there_when_it_began():
    shop = Shop("1", "2", "3")
    shop.deliver("1", "2")
    worker = Worker(shop.registry, MemoryAdapter(shop.broker))
    thread = threading.Thread(target=worker.run)
    thread.start()

    def more(_: Redriven) -> None:
        if not shop.runs["3"]:
            shop.broker.publish(Message("orders", b"body", id="3"))

    try:
        done = shop.redrive(on_letter=more)
    finally:
        worker.stop()
        thread.join()
    assert (done.returned, done.reopened) == (2, 2)
    assert done.left == done.again
    assert shop.runs == {"1": 2, "2": 2, "3": 1}
    assert {letter.message.id for letter in shop.broker.dead_letters("orders")} == {"1", "2", "3"}


def test_a_letter_that_is_rejected_again_and_again_is_returned_once():
    shop = Shop(fingerprint=lambda m: m.body)
    shop.deliver("1")
    shop.broker.publish(Message("orders", b"other content", id="1"))
    assert shop.deliver()[Outcome.REJECTED] == 1
    worker = Worker(shop.registry, MemoryAdapter(shop.broker))
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        done = shop.redrive()
    finally:
        worker.stop()
        thread.join()
    assert done.returned == 1
    assert done.again == done.left
    assert len(shop.broker.dead_letters("orders")) == 1


@pytest.mark.parametrize(
    ("origin", "is_ours"),
    [
        (None, True),
        ("orders", True),
        ("/queue/orders", True),
        ("orders/0/17", True),
        ("orders/0/17/3", True),
        ("other", False),
        ("/queue/other", False),
        ("orders-2/0/17", False),
        ("orders/x", False),
    ],
)
def test_of_a_shared_target_only_the_consumer_s_own_letters_go_back(origin, is_ours):
    class Shared(MemoryAdapter):
        def origin_of(self, letter):
            return origin

    shop = Shop("1")
    shop.deliver("1")
    done = redrive(shop.consumer, Shared(shop.broker), idle_s=0.3)
    assert (done.returned, done.others) == ((1, 0) if is_ours else (0, 1))
    assert len(shop.broker.dead_letters("orders")) == (0 if is_ours else 1)


def test_a_broker_that_was_not_reached_is_an_error():
    shop = Shop("1")
    shop.deliver("1")

    class Away(MemoryAdapter):
        connected = False

        def receive(self, limit, timeout_s):
            time.sleep(timeout_s)
            return []

    with pytest.raises(AdapterError, match="was not reached"):
        redrive(shop.consumer, Away(shop.broker), idle_s=0.3)


def test_a_limit_counts_what_is_returned():
    """Letters that nobody can return do not stand in the way of others."""
    shop = Shop("1", "2", "3")
    shop.deliver(None, None, None, "1", "2", "3")
    shop.bad.clear()
    done = shop.redrive(limit=2)
    assert (done.returned, done.left) == (2, 3)
    assert len(shop.broker.dead_letters("orders")) == 4


class TestTheFirstLetters:
    """`canary`: the rest goes back only after the first ones are done."""

    def redrive(self, shop: Shop, **options) -> Redriven:
        """Redrive beside a worker."""
        worker = Worker(shop.registry, MemoryAdapter(shop.broker))
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            return shop.redrive(**options)
        finally:
            worker.stop()
            thread.join()

    def test_the_rest_follows_once_they_are_done(self):
        shop = Shop(*"12345")
        shop.deliver(*"12345")
        shop.bad.clear()
        done = []

        def look(redriven: Redriven) -> None:
            done.append((redriven.returned, len(shop.done)))

        assert self.redrive(shop, canary=2, on_letter=look) == Redriven(returned=5, reopened=5)
        assert done[1] == (2, 2)
        shop.deliver()
        assert sorted(shop.done) == [*"12345"]

    def test_the_rest_stays_if_one_dies_again(self):
        shop = Shop(*"12345")
        shop.deliver(*"12345")
        done = self.redrive(shop, canary=2)
        assert (done.returned, done.stopped, done.died >= 1) == (2, True, True)
        assert len(shop.broker.dead_letters("orders")) == 5
        assert {shop.runs[each] for each in "345"} == {1}

    def test_the_rest_stays_if_no_worker_runs(self):
        shop = Shop(*"12345")
        shop.deliver(*"12345")
        assert shop.redrive(canary=2, canary_wait_s=1) == Redriven(returned=2, reopened=2, open=2)
        assert len(shop.broker.dead_letters("orders")) == 3

    @pytest.mark.parametrize("limit", [None, 1], ids=["all", "limited"])
    def test_fewer_letters_are_waited_for_too(self, limit):
        shop = Shop(*"12")
        shop.deliver(*"12")
        sent = 2 if limit is None else limit
        assert shop.redrive(canary=3, canary_wait_s=1, limit=limit) == Redriven(
            returned=sent, reopened=sent, open=sent
        )

    def test_fewer_letters_that_die_again_are_told(self):
        shop = Shop(*"12")
        shop.deliver(*"12")
        done = self.redrive(shop, canary=3)
        assert (done.returned, done.died >= 1) == (2, True)

    def test_a_rehearsal_does_not_wait(self):
        shop = Shop(*"12")
        shop.deliver(*"12")
        assert shop.redrive(canary=3, canary_wait_s=3600, dry_run=True) == Redriven(returned=2, reopened=2)


def state(shop: Shop, name: str) -> str | None:
    record = shop.checker.admin().get(ORDERS.key(name))
    return None if record is None else record.state


def reopen(shop: Shop) -> None:
    admin = shop.checker.admin()
    assert admin.reopen(admin.get(ORDERS.key("1")))


def resolve(shop: Shop) -> None:
    admin = shop.checker.admin()
    assert admin.mark_done(admin.get(ORDERS.key("1")))


def run(shop: Shop) -> None:
    """A worker runs it, after somebody has reopened it."""
    reopen(shop)
    assert shop.checker.protocol.claim(ClaimRequest(ORDERS.key("1"))).claim is not None


def die_again(shop: Shop) -> None:
    reopen(shop)
    claim = shop.checker.protocol.claim(ClaimRequest(ORDERS.key("1"))).claim
    assert shop.checker.protocol.release(claim, Failure("ValueError: again", 1, fatal=True)).dead


CHANGES = {each.__name__: each for each in (reopen, resolve, run, die_again)}


class TestDropping:
    """What a key becomes when letters of it are dropped."""

    @pytest.fixture
    def shop(self) -> Shop:
        """A shop with a dead letter, and a copy of it."""
        shop = Shop("1")
        shop.deliver("1", "1")
        assert len(shop.broker.dead_letters("orders")) == 2
        return shop

    def drop(self, shop: Shop, **choice) -> int:
        return self.dropped(shop, **choice).dropped

    def dropped(self, shop: Shop, **choice) -> Dropped:
        adapter = MemoryAdapter(shop.broker)
        return drop(shop.consumer, adapter, only=LetterFilter(**choice), note="x", idle_s=0.3)

    def letters(self, shop: Shop, **choice) -> list[Letter]:
        return letters(shop.consumer, MemoryAdapter(shop.broker), only=LetterFilter(**choice), idle_s=0.3)

    def test_a_copy_has_the_error_of_its_original(self, shop):
        first, copy = self.letters(shop)
        assert (first.error, first.reason) == (copy.error, copy.reason)

    def test_a_letter_whose_copy_was_dropped_still_runs(self, shop):
        copy = self.letters(shop)[1]
        assert self.drop(shop, names=frozenset({copy.place})) == 1
        assert len(shop.broker.dead_letters("orders")) == 1
        shop.bad.clear()
        assert shop.redrive() == Redriven(returned=1, reopened=1)
        shop.deliver()
        assert shop.done == ["1"]

    def test_letters_that_are_dropped_together_are_done(self, shop):
        assert self.drop(shop, names=frozenset({"1"})) == 2
        assert shop.checker.admin().get(ORDERS.key("1")).status is KeyStatus.DONE
        shop.bad.clear()
        assert shop.deliver("1")[Outcome.DUPLICATE] == 1

    @pytest.mark.parametrize("change", CHANGES)
    def test_one_whose_key_is_another_than_was_shown_stays(self, change):
        shop = Shop("1", "2")
        shop.deliver("1", "2")
        shown = {each.place: each.state for each in self.letters(shop)}
        CHANGES[change](shop)
        then = state(shop, "1")
        assert self.dropped(shop, shown=shown) == Dropped(1, ("orders:billing:1",))
        assert state(shop, "1") == then, "nobody has decided about what it is now"
        assert shop.checker.admin().get(ORDERS.key("2")).status is KeyStatus.DONE
        now = LetterFilter(shown=shown)
        assert shop.redrive(only=now) == Redriven(left=1, changed=("orders:billing:1",))
        assert state(shop, "1") == then
        assert len(shop.broker.dead_letters("orders")) == 1

    def test_copies_that_were_shown_are_dropped_and_returned_together(self, shop):
        shown = LetterFilter(shown={each.place: each.state for each in self.letters(shop)})
        assert shop.redrive(only=shown, dry_run=True) == Redriven(returned=1, reopened=1, left=1, again=1)
        assert self.dropped(shop, shown=shown.shown) == Dropped(2)

    def test_a_letter_whose_key_is_not_stored_never_runs_either(self):
        shop = Shop("1")
        shop.deliver("1")
        admin = shop.checker.admin()
        assert admin.reopen(admin.get(ORDERS.key("1")))
        assert self.drop(shop, names=frozenset({"1"})) == 1
        shop.bad.clear()
        assert shop.deliver("1")[Outcome.DUPLICATE] == 1
        assert shop.done == []

    def test_a_letter_whose_message_runs_now_stays(self):
        shop = Shop("1")
        shop.deliver("1")
        admin = shop.checker.admin()
        assert admin.reopen(admin.get(ORDERS.key("1")))
        claim = shop.checker.protocol.claim(ClaimRequest(ORDERS.key("1"))).claim
        assert claim is not None
        assert self.drop(shop, names=frozenset({"1"})) == 0
        assert len(shop.broker.dead_letters("orders")) == 1

    def test_an_id_that_reads_as_a_key_or_a_place_names_no_letter(self):
        shop = Shop("1", "orders:billing:1", "letter-0")
        shop.deliver("1", "orders:billing:1", "letter-0")
        assert [each.message.id for each in self.letters(shop, names=frozenset({"orders:billing:1"}))] == [
            "1"
        ]
        assert self.letters(shop, names=frozenset({"letter-0"})) == []
