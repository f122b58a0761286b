"""A console over a shop with dead letters, in this process, and a browser without JavaScript."""

from functools import partial

import pytest
from starlette.testclient import TestClient

from idempotent import Message, Registry, Worker
from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from idempotent.checkers import SqlChecker
from idempotent.console.app import Console
from idempotent.console.audit import Audit
from idempotent.console.guard import Access
from idempotent.keys import KeySpace
from idempotent.migrations import upgrade
from tests.console.browser import TOKEN, Browser

KEYS = KeySpace("orders", "billing")


class Shop:
    """A consumer that refuses some messages, its broker and its store."""

    def __init__(self, url: str) -> None:
        upgrade(url)
        self.url = url
        self.broker = MemoryBroker()
        self.checker = SqlChecker(url)
        self.registry = Registry()
        self.bad = True
        self.done: list[str] = []
        self.consumer = self.registry.consumer(
            "orders", group="billing", checker=self.checker, max_attempts=1
        )(self.handle)

    def handle(self, message: Message) -> None:
        if self.bad:
            why = message.headers.get("why", f"no customer of {message.id}")
            raise (LookupError if message.headers.get("odd") else ValueError)(why)
        self.done.append(str(message.id))

    def deliver(self, *messages: Message) -> None:
        for message in messages:
            self.broker.publish(message)
        Worker(self.registry, MemoryAdapter(self.broker, until_empty=True)).run()

    @property
    def left(self) -> list[str]:
        return sorted(str(letter.message.id) for letter in self.broker.dead_letters("orders"))

    def status(self, name: str):
        record = self.checker.admin().get(KEYS.key(name))
        return None if record is None else record.status.name


@pytest.fixture
def shop(tmp_path):
    made = Shop(f"sqlite:///{tmp_path / 'keys.db'}")
    yield made
    made.registry.close()
    made.checker.close()


@pytest.fixture
def letters(shop):
    """The shop with three dead letters of two errors, and one without a key."""
    shop.deliver(
        Message("orders", b'{"cents": 1}', id="1"),
        Message("orders", b"two", id="2", headers={"colour": "red"}),
        Message("orders", b"three", id="3", headers={"odd": "yes"}),
        Message("orders", b"", id=None),
    )
    assert shop.left == ["1", "2", "3", "None"]
    return shop


@pytest.fixture
def console(shop, tmp_path):
    """Makes a browser that looks at the shop's console; `read_only=True` and the like are words of `Access`.

    The same words are the same console, with another person.
    """
    consoles, opened = {}, []

    def make(where="", idle_s=0.2, **words):
        named = repr((where, idle_s, words))
        if named not in consoles:
            access = Access("127.0.0.1", 8765, **{"token": TOKEN, **words})
            audit = Audit(tmp_path / "audit.jsonl")
            adapter = partial(MemoryAdapter, shop.broker)
            consoles[named] = Console(
                access, registry=shop.registry, adapter=adapter, audit=audit, idle_s=idle_s
            )
        address = words.get("public_url") or "http://127.0.0.1:8765"
        opened.append(TestClient(consoles[named].app, base_url=address, follow_redirects=False))
        return Browser(opened[-1])

    make.consoles = consoles
    yield make
    for client in opened:
        client.close()
    for each in consoles.values():
        each.close()


@pytest.fixture
def browser(console):
    """One that has logged in."""
    return console().log_in()


@pytest.fixture
def looking():
    """Makes a browser that looks at a console with these words."""
    opened = []

    def look(**words):
        made = Console(Access("127.0.0.1", 8765, TOKEN), idle_s=0.2, **words)
        client = TestClient(made.app, base_url="http://127.0.0.1:8765", follow_redirects=False)
        opened.extend((client, made))
        return Browser(client).log_in()

    yield look
    for each in opened:
        each.close()
