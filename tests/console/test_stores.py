"""A store alone: its keys and its outbox, on each kind of store; and consumers that keep no keys."""

import re
import time
from functools import partial

import pytest
from sqlalchemy import MetaData

from idempotent import Message, Registry, Worker
from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from idempotent.admin import KeyStats
from idempotent.checkers import MemoryChecker, SqlChecker
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.memory import AttemptChecker, MemoryKeyAdmin
from idempotent.claims import KeyStatus
from idempotent.console.stores import ConsoleStore, Counted
from idempotent.errors import AdapterError
from idempotent.keys import KeySpace
from idempotent.outbox import Outbox, outbox_tables
from tests.cli.outbox.sending import until
from tests.cli.outbox.test_outbox import held
from tests.cli.support import dead, done, lapsed
from tests.support.stores import SHARED, open_store

KEYS = KeySpace("orders", "billing")


class Unnamed(MemoryChecker):
    """A user's own, which does not say where its keys are."""

    @property
    def store_name(self):
        return type(self).__name__


@pytest.mark.parametrize("kind", SHARED)
def test_dead_keys_and_lapsed_claims_of_a_store_are_resolved(looking, kind, request):
    for store in open_store(kind, request):
        dead(store, KEYS.key("1"))
        dead(store, KEYS.key("2"), "LookupError: odd")
        lapsed(store, KEYS.key("3"))
        browser = looking(checker=store.leased())
        page = browser.open("/")
        assert "orders:billing no broker given 2 1 1" in page.text
        desk = page.links["orders:billing"]
        page = browser.settled(desk)
        assert "Dead letters" not in page.text
        assert "LookupError: odd" in page.text
        together = browser.open(page.links["All of these groups together"])
        browser.press(browser.propose(together, "done", all="1"), "Mark as done", note="I looked")
        page = browser.settled(desk)
        assert "2 keys marked done." in page.text
        claims = browser.open(page.links["1 lapsed claim"])
        browser.press(browser.propose(claims, "retry", all="1"), "Reopen", note="it did not")
        assert "1 key reopened." in browser.settled(desk).text
        admin = store.leased().admin()
        assert [admin.get(KEYS.key(name)) and admin.get(KEYS.key(name)).status.name for name in "123"] == [
            "DONE",
            "DONE",
            None,
        ]


def test_a_result_is_shown_as_it_is_stored(looking, request):
    for store in open_store("sqlite", request):
        done(store, KEYS.key("1"), result=b"20261130")
        browser = looking(checker=store.leased())
        assert "result 20261130" in browser.look_up("1", browser.open("/").links["orders:billing"][15:]).text


def test_what_a_broker_refuses_is_shown_and_tried_again(looking, request):
    for store in open_store("sqlite", request):
        metadata = MetaData()
        outbox_tables(metadata, store.table)
        metadata.create_all(store.admin_engine)
        outbox = Outbox(store.engine(), table=store.table)
        relay, adapter = held(outbox, store)
        with relay:
            until(lambda stats=outbox.store.stats: stats().held == 2)
            browser = looking(checker=store.leased())
            assert "2 held" in browser.open("/").text
            page = browser.open("/outbox?store=0")
            assert "refused 1 time: no queue" in page.text
            assert "waits behind a" in page.text
            assert [form.button for form in page.forms].count("Try again") == 1
            adapter.refuses.clear()
            browser.press(page, "Try again")
            until(lambda adapter=adapter: adapter.published == ["a", "b"])
        assert "Nothing is held." in browser.open("/outbox?store=0").text
        assert "alice outbox retry" in browser.open("/audit").text
        assert "1 refused message will be tried again" in browser.open("/audit").text
        outbox.close()


def test_a_store_without_an_outbox_says_so(looking, request):
    for store in open_store("sqlite", request):
        browser = looking(checker=store.leased())
        with store.admin_engine.begin() as connection:
            for suffix in ("_delayed", "_held", "_leases", ""):
                connection.exec_driver_sql(f"DROP TABLE IF EXISTS {store.table}_outbox{suffix}")
        assert browser.open("/").status == 200
        assert "This store has no outbox." in browser.open("/outbox?store=0").text
        browser = looking(checker=MemoryChecker())
        assert browser.open("/outbox?store=0").status == 404


def test_stores_are_told_apart_by_their_tables_and_counted_once_each(looking, request):
    for store in open_store("sqlite", request):
        registry = Registry()
        memory = (MemoryChecker(), MemoryChecker(), Unnamed(), Unnamed())
        checkers = (store.leased(), store.transactional(), *memory)
        for number, checker in enumerate(checkers):
            registry.consumer("orders", group=f"g{number}", checker=checker)(lambda message: None)
            registry.consumer("mail", group=f"g{number}", checker=checker)(lambda message: None)
        dead(store, KeySpace("orders", "g0").key("1"))
        text = looking(registry=registry).open("/").text
        assert text.count("Store ") == 5
        assert f".db/{store.table}" in text
        assert "orders:g0 no broker given 1 0 0" in text
        assert "orders:g1 no broker given 0 0 0" in text


@pytest.mark.parametrize(
    ("took_s", "lasts_s"), [(0.0, 4.0), (0.1, 4.0), (1.0, 20.0), (3.0, 60.0), (600.0, 60.0)]
)
def test_a_store_that_is_slow_to_count_is_counted_less_often_but_each_minute(took_s, lasts_s):
    assert Counted(took_s=took_s).lasts_s == lasts_s


def test_databases_whose_urls_have_a_password_are_two_stores():
    """A command has the same words for both: --url env:VARIABLE."""
    paid, sent = (
        SqlChecker(f"postgresql+psycopg://shop:secret@localhost/{name}") for name in ("paid", "sent")
    )
    store = ConsoleStore(paid)
    assert (store.is_of(paid), store.is_of(sent)) == (True, False)
    assert store.name == "postgresql://localhost/paid/deduplicate_tbl"
    for each in (store, paid, sent):
        each.close()


def test_a_transactional_consumer_says_what_cannot_be_seen(looking, request):
    for store in open_store("sqlite", request):
        registry = Registry()
        registry.consumer("orders", group="billing", checker=store.transactional())(lambda message: None)
        browser = looking(registry=registry)
        page = browser.settled("/consumer?desk=orders:billing")
        assert "Running or not claimed: the worker's health shows what runs." in page.text


def test_a_checker_without_an_admin_keeps_its_letters(looking):
    class Bare(MemoryChecker):
        def admin(self):
            return AbstractIdempotentChecker.admin(self)

    broker, registry = MemoryBroker(), Registry()
    registry.consumer("orders", group="billing", checker=Bare(), max_attempts=1)(lambda message: 1 / 0)
    broker.publish(Message("orders", b"x", id="1"))
    Worker(registry, MemoryAdapter(broker, until_empty=True)).run()
    browser = looking(registry=registry, adapter=partial(MemoryAdapter, broker))
    assert "keeps none" in browser.open("/").text
    page = browser.settled("/consumer?desk=orders:billing")
    assert "cannot show its keys" in page.text
    assert len(broker.dead_letters("orders")) == 1


def test_consumers_that_two_requests_find_at_once_are_known_to_both(looking):
    meanwhile = []

    class Name(str):
        """Has something else happen while the console goes through the names that it knows."""

        __slots__ = ()

        def __hash__(self):
            while meanwhile:
                meanwhile.pop()()
            return super().__hash__()

    names = [Name("orders:billing")]

    class Counting(MemoryKeyAdmin):
        def stats(self):
            return [KeyStats(name, KeyStatus.DEAD, 1, 0, 0) for name in names]

    class Growing(MemoryChecker):
        def admin(self):
            return Counting(self)

    browser = looking(checker=Growing())
    assert "orders:billing" in browser.open("/").text
    names.append(Name("orders:mail"))
    time.sleep(Counted().lasts_s + 1)
    meanwhile.append(lambda: until(lambda: browser.open("/consumer?desk=0/orders:mail").status == 200))
    assert "orders:mail" in browser.open("/").text
    assert not meanwhile


def test_ages_are_told_by_the_clock_of_the_store(looking):
    def clock():
        return time.time() - 400 * 86400

    broker, registry = MemoryBroker(), Registry()
    checker = MemoryChecker(clock=clock)
    registry.consumer("orders", group="billing", checker=checker, max_attempts=1)(lambda message: 1 / 0)
    broker.publish(Message("orders", b"x", id="1"))
    Worker(registry, MemoryAdapter(broker, until_empty=True)).run()
    browser = looking(registry=registry, adapter=partial(MemoryAdapter, broker))
    assert re.search(r" 1 \d+ s ago \d+ s ago ZeroDivisionError", browser.read().text)


def test_a_broker_that_is_down_is_said(looking):
    class Down(MemoryAdapter):
        def open(self, consumers):
            raise AdapterError("no connection to amqp://shop:secret@broker")

    registry = Registry()
    registry.consumer("orders", group="billing", checker=MemoryChecker())(lambda message: None)
    browser = looking(registry=registry, adapter=partial(Down, MemoryBroker()))
    page = browser.read()
    assert (page.status, "Failed: no connection to amqp://shop:***@broker" in page.text) == (200, True)
    assert browser.open("/").status == 200


def test_a_consumer_that_recognises_positions_returns_all_letters_or_none(looking):
    """It has no keys: a letter that is returned past one that stays would run twice."""
    broker, registry = MemoryBroker(), Registry()
    registry.consumer("orders", group="billing", checker=AttemptChecker())(lambda message: None)
    for name in ("1", "2"):
        broker.publish(Message("orders", b"x", id=name))
    Worker(registry, MemoryAdapter(broker, until_empty=True)).run()
    assert len(broker.dead_letters("orders")) == 2, "this broker has no positions, so they were rejected"
    browser = looking(registry=registry, adapter=partial(MemoryAdapter, broker))
    assert "keeps none" in browser.open("/").text
    group = browser.group()
    (one, *_) = (path.rpartition("id=")[2] for path in group.links.values() if "/item?" in path)
    assert "without a choice" in browser.propose(group, "redrive", one).text
    proposal = browser.propose(group, "redrive", all="1")
    assert "Of 2 letters, 2 messages would be returned" in proposal.text
    browser.press(proposal, "Redrive")
    assert "2 messages returned, 0 keys reopened." in browser.read().text
    assert broker.backlog("orders") == 2
