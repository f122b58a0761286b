"""The console over RabbitMQ, and over a store with a hundred thousand dead keys."""

import re
import threading
import time
from functools import partial

import pytest
from sqlalchemy import MetaData
from starlette.testclient import TestClient

from idempotent import Message, Registry, Worker
from idempotent.adapters.urls import letters_adapter_from_url
from idempotent.checkers import SqlChecker
from idempotent.claims import KeyStatus
from idempotent.console.app import Console
from idempotent.console.guard import Access
from idempotent.keys import KeySpace
from idempotent.migrations import upgrade
from idempotent.schema import dedup_tables
from tests.adapters.rabbitmq.conftest import rabbit
from tests.console.browser import TOKEN, Browser
from tests.support.stores import open_store

__all__ = ["rabbit"]
DEADLINE_S = 60
pytestmark = pytest.mark.slow


def looking_at(**words):
    made = Console(Access("127.0.0.1", 8765, TOKEN), **words)
    return TestClient(made.app, base_url="http://127.0.0.1:8765", follow_redirects=False)


def test_a_poison_message_of_rabbitmq_is_seen_redriven_and_runs(rabbit, tmp_path):
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    upgrade(url)
    queue, registry, broken, done = rabbit.name("console"), Registry(), [True], []
    checker = SqlChecker(url)

    @registry.consumer(queue, group="billing", checker=checker, max_attempts=1)
    def handle(message: Message) -> None:
        if broken and message.id != "fine":
            raise ValueError(f"no customer of {message.id}")
        done.append(message.id)

    def work(until):
        worker = Worker(registry, rabbit.adapter())
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            limit = time.monotonic() + DEADLINE_S
            while not until():
                assert time.monotonic() < limit
                time.sleep(0.05)
        finally:
            worker.stop()
            thread.join(DEADLINE_S)

    adapter = rabbit.adapter()
    adapter.open([handle])
    for name in ("1", "2", "fine"):
        adapter.publish(Message(queue, b"\xff\x00 body", id=name, headers={"colour": "red"}))
    adapter.close()
    work(lambda: rabbit.depth(f"{queue}.dead") == 2 and done == ["fine"])
    with looking_at(
        registry=registry, adapter=partial(letters_adapter_from_url, rabbit.url), idle_s=1.0
    ) as client:
        browser = Browser(client).log_in()
        desk = f"{queue}%3Abilling"
        group = browser.group(desk=desk)
        assert "ValueError: no customer of" in group.text
        item = browser.open(group.links[f"{queue}:billing:1"])
        assert "colour red" in item.text
        assert "As base64" in browser.press(item, "Show the body").text
        proposal = browser.propose(browser.group(desk=desk), "redrive", all="1")
        assert "2 messages would be returned" in proposal.text
        assert rabbit.depth(f"{queue}.dead") == 2
        browser.press(proposal, "Redrive", rate="20", note="mended")
        assert "2 messages returned, 2 keys reopened." in browser.read(desk).text
        broken.clear()
        work(lambda: len(done) == 3)
        assert "No dead letter." in browser.again(desk).text
    assert sorted(done) == ["1", "2", "fine"]
    checker.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_hundred_thousand_dead_keys_do_not_slow_it(kind, request):
    most, space = 100_000, KeySpace("orders", "billing")
    for store in open_store(kind, request):
        checker = store.leased()
        tables = dedup_tables(MetaData(), store.table)
        with store.admin_engine.begin() as connection:
            for start in range(0, most, 5000):
                keys = [space.key(str(number)) for number in range(start, start + 5000)]
                connection.execute(tables.keys.insert(), [row(key) for key in keys])
                connection.execute(tables.failures.insert(), [failure(key) for key in keys])
        with looking_at(checker=checker) as client:
            browser = Browser(client).log_in()
            took = {}
            began = time.monotonic()
            desk = browser.open("/").links["orders:billing"]
            took["overview"] = time.monotonic() - began
            began = time.monotonic()
            page = browser.settled(desk)
            took["reading"] = time.monotonic() - began
            assert "The first 10,000 of 100,000 dead keys" in page.text
            assert re.search(r" [45],\d{3} ", page.text)
            began = time.monotonic()
            (first, *_) = (path for path in page.links.values() if "kind=keys" in path)
            group = browser.open(first)
            took["group"] = time.monotonic() - began
            began = time.monotonic()
            following = browser.open(group.links["Next page"])
            took["next page"] = time.monotonic() - began
            shown = [
                {name for name in each.links if name.startswith("orders:")} for each in (group, following)
            ]
            assert (len(shown[0]), len(shown[1]), shown[0] & shown[1]) == (101, 101, {"orders:billing"})
            proposal = browser.propose(group, "done", all="1")
            began = time.monotonic()
            browser.press(proposal, "Mark as done", note="by hand")
            text = browser.settled(desk).text
            took["5,000 done"] = time.monotonic() - began
            assert "keys marked done." in text
        assert max(took.values()) < DEADLINE_S, took


def row(key):
    at = time.time_ns() // 1000
    return {
        "key_hash": key.hash,
        "k": str(key),
        "status": int(KeyStatus.DEAD),
        "owner": b"\0" * 16,
        "fence": 1,
        "update_at": at,
        "expires_at": 2**53 - 1,
    }


def failure(key):
    odd = key.hash[0] % 2
    return {
        "key_hash": key.hash,
        "k": str(key),
        "attempts": 1,
        "last_error": f"{'LookupError' if odd else 'ValueError'}: no customer of {key}",
        "update_at": time.time_ns() // 1000,
        "expires_at": 2**53 - 1,
    }
