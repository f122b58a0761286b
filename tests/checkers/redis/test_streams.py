"""A group on Redis: the server claims its first keys while the keys of the others are being made."""

import secrets
import time
from contextlib import closing

import pytest
import redis

from idempotent import Message, Outcome, Registry
from idempotent.checkers import MemoryChecker, RedisChecker
from idempotent.errors import StoreUnavailableError
from idempotent.stores.redis.scripts import MAX_KEYS

MANY = 2 * MAX_KEYS


class Group:
    """A consumer whose key expression does something in the middle of a group."""

    def __init__(self, url, happens):
        self.checker = RedisChecker(f"{url}?socket_timeout=2")
        self.handled = []
        registry = Registry()

        def key(message):
            if message.id == str(MANY // 2):
                happens()
            return message.id

        @registry.consumer("orders", checker=self.checker, group="billing", key=key)
        def handle(message):
            self.handled.append(message.id)

        self.consumer = handle

    def load_scripts(self):
        self.consumer.process_many([Message("orders", id="a"), Message("orders", id="b")])
        self.checker.store.client.flushdb()
        self.handled.clear()

    def process(self):
        return self.consumer.process_many([Message("orders", id=str(number)) for number in range(MANY)])


@pytest.fixture
def group_of():
    groups = []

    def make(url, happens):
        groups.append(Group(url, happens))
        return groups[-1]

    yield make
    for group in groups:
        group.checker.close()


def test_the_first_keys_are_claimed_while_others_are_made(private_redis, group_of):
    server = private_redis()
    seen = []

    def look():
        deadline = time.monotonic() + 10
        with redis.Redis.from_url(server.url) as other:
            while not other.dbsize() and time.monotonic() < deadline:
                time.sleep(0.01)
            seen.append(other.dbsize())

    group = group_of(server.url, look)
    group.load_scripts()
    results = group.process()
    assert 0 < seen[0] <= MANY // 2
    assert {result.outcome for result in results} == {Outcome.PROCESSED}
    assert len(group.handled) == MANY


def test_a_server_that_dies_meanwhile_leaves_no_message_without_an_answer(private_redis, group_of):
    server = private_redis()
    group = group_of(server.url, server.kill)
    results = group.process()
    assert {result.outcome for result in results} == {Outcome.UNAVAILABLE}
    assert len(results) == MANY
    assert not group.handled


def test_an_interruption_meanwhile_leaves_no_answers_for_the_next_call(private_redis, group_of):
    once = iter([KeyboardInterrupt()])

    def interrupt():
        for error in once:
            raise error

    group = group_of(private_redis().url, interrupt)
    group.load_scripts()
    with pytest.raises(KeyboardInterrupt):
        group.process()
    assert not group.handled
    # What had been claimed is freed first: no handler ran for it.
    assert [result.outcome for result in group.process()] == [Outcome.PROCESSED] * MANY
    assert len(group.handled) == MANY


def test_a_store_that_fails_at_once_leaves_no_message_without_an_answer():
    class FailsAtOnce(MemoryChecker):
        def _claim_many(self, requests):
            next(iter(requests))
            raise StoreUnavailableError("gone")

    registry = Registry()

    @registry.consumer("orders", checker=FailsAtOnce(), group="billing")
    def handle(message):
        raise AssertionError("nothing was claimed")

    results = handle.process_many([Message("orders", id=str(n)) for n in range(5)])
    assert [result.outcome for result in results] == [Outcome.UNAVAILABLE] * 5


def test_a_checker_of_ones_own_may_look_at_the_requests_first(redis_url):
    class Looks(RedisChecker):
        def _claim_many(self, requests):
            seen.append((len(requests), [request.key.text for request in requests], requests[-1].key.text))
            return super()._claim_many(requests)

    seen, registry = [], Registry()
    with closing(Looks(redis_url)) as checker:

        @registry.consumer("orders", checker=checker, group=secrets.token_hex(6))
        def handle(message):
            """Nothing."""

        results = handle.process_many([Message("orders", id=str(number)) for number in range(5)])
    assert [result.outcome for result in results] == [Outcome.PROCESSED] * 5
    names = [f"{handle.name}:{number}" for number in range(5)]
    assert seen == [(5, names, names[-1])]
