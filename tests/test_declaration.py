"""What `@consumer` takes and refuses, and how a consumer finds its checker."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
from contextlib import nullcontext

import pytest
from sqlalchemy.orm import Session

from idempotent import Backoff, Message, Outcome, Registry, Worker
from idempotent.adapters import MemoryAdapter, MemoryBroker
from idempotent.checkers import (
    AttemptChecker,
    MemoryChecker,
    OffsetChecker,
    RedisChecker,
    SqlChecker,
    TransactionalSqlChecker,
)
from idempotent.codecs import JsonCodec
from idempotent.errors import ConfigurationError, UnknownCheckerError
from idempotent.redrive import Redriven, redrive
from tests.support.consumers import message

registry = Registry()


def test_a_checker_is_found_by_name_and_may_be_overridden():
    registry = Registry()
    registry.checker("orders-db", MemoryChecker())

    @registry.consumer("orders", checker="orders-db")
    def handle(message):
        return "ran"

    handle(message())
    with registry.override("orders-db", MemoryChecker()):
        assert handle(message()).outcome is Outcome.PROCESSED
    assert handle(message()).outcome is Outcome.DUPLICATE


def test_a_handler_outside_of_its_transaction_is_told_of_once(caplog, tmp_path):
    registry = Registry()
    checker = TransactionalSqlChecker(f"sqlite:///{tmp_path / 'a.db'}")
    registry.consumer("orders", checker=checker)(lambda _: None)
    registry.check()
    assert registry.consumers["orders:default"].checker is checker
    registry.check()  # once more, as a worker does at its start
    assert [line.event for line in caplog.records] == ["handler_outside_transaction"]
    registry.close()


def test_each_checker_is_closed_also_if_another_one_raises():
    closed = []

    class Closing(MemoryChecker):
        def close(self):
            closed.append(self)
            raise RuntimeError("the pool is gone")

    registry = Registry()
    for name in ("orders-db", "mail-db"):
        registry.checker(name, Closing())
    with pytest.raises(RuntimeError, match="the pool is gone"):
        registry.close()
    assert len({*closed}) == 2


def test_threads_that_ask_for_the_checker_of_a_url_at_once_get_one():
    registry, made, found = Registry(), [], []

    def slow(frame, what, _):
        if what == "call" and frame.f_code is MemoryChecker.__init__.__code__:
            made.append(frame.f_locals["self"])
            time.sleep(0.2)

    def ask():
        sys.setprofile(slow)
        found.append(registry.resolve("memory://"))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == made * 4


def test_an_unknown_checker_is_an_error_that_lists_the_known():
    registry = Registry()
    registry.checker("orders-db", MemoryChecker())
    registry.checker("mail", "memory://")

    @registry.consumer("orders", checker="order-db")
    def handle(message):
        pass

    for use in (lambda: handle(message()), registry.check):
        with pytest.raises(UnknownCheckerError, match="'order-db'; known: mail, orders-db"):
            use()


def declare(function, **options):
    options.setdefault("checker", MemoryChecker())
    return Registry().consumer("orders", **options)(function)


def hidden(handler):
    @functools.wraps(handler)
    def call(message):
        return handler(message)

    return call


async def async_handler(message):
    pass


def generator_handler(message):
    yield


@pytest.mark.parametrize(
    ("declaration", "said"),
    [
        (lambda: declare(hidden(async_handler)), "behind a decorator"),
        (lambda: declare(generator_handler), "generator"),
        (lambda: declare(lambda: None), r"must take \(message\)"),
        (lambda: declare(lambda a, b, c: None), r"must take \(message\)"),
        (lambda: declare(takes_a_session), "no transaction to share"),
        (lambda: declare(takes_a_string), "Session or Connection"),
        (lambda: declare(print_message, on_expired_lease="ask"), "'retry', 'park', or a callable"),
        (lambda: declare(print_message, on_missing_key="drop"), "'reject', 'process'"),
        (lambda: declare(print_message, retry_for=("ValueError",)), "exception class, or a tuple"),
        (lambda: declare(print_message, max_attempts=0), "at least 1"),
        (lambda: declare(print_message, handler_timeout_s=1), "a thread cannot be cancelled"),
        (lambda: declare(print_message, batch=True, on_expired_lease="park"), "cannot go with batch"),
        (lambda: declare(print_message, batch=True, store_result=True), "cannot go with batch"),
        (lambda: declare(print_message, batch=True, codec=JsonCodec()), "cannot go with batch"),
        (lambda: declare(print_message, batch=True, on_cancel="park"), "cannot go with batch"),
        (lambda: declare(print_message, on_cancel="finish"), "which no task cancels"),
        (lambda: Registry().consumer("", checker=MemoryChecker()), "subject"),
        (lambda: Registry().consumer("idempotent", checker=MemoryChecker()), "keys are the library's own"),
        (lambda: declare(print_message, checker="nonsense://x"), "the URL is invalid"),
        (lambda: SqlChecker("sqlite://"), "in-memory"),
        (lambda: SqlChecker("sqlite:///x.db", table="a; DROP TABLE b"), "table"),
        (lambda: MemoryChecker(lease_s=0), "lease_s"),
        (lambda: MemoryChecker(retention_s=-1), "retention_s"),
        (lambda: Backoff(5, 1), "initial_s <= maximum_s"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_declared(declaration, said):
    with pytest.raises(ConfigurationError, match=said):
        declaration()


CHECKERS = {
    "memory": MemoryChecker,
    "memory without leases": lambda: MemoryChecker(lease_s=None),
    "attempts": AttemptChecker,
    "sql": lambda: SqlChecker("sqlite:///x.db"),
    "sql without leases": lambda: SqlChecker("sqlite:///x.db", lease_s=None),
    "redis": lambda: RedisChecker("redis://127.0.0.1:1"),
    "transactional": lambda: TransactionalSqlChecker("sqlite:///x.db"),
    "offsets": lambda: OffsetChecker("sqlite:///x.db"),
}
POSITIONS = {"attempts", "offsets"}
TRANSACTIONS = {"transactional", "offsets"}
NO_LEASES = {"memory without leases", "sql without leases", *TRANSACTIONS}
# Each option of `@consumer` with a value that is not its default, and the checkers that cannot do as it says.
OPTIONS = {
    "key": ([lambda m: m.id], POSITIONS),
    "fingerprint": ([lambda m: m.body], POSITIONS),
    "store_result": ([True], POSITIONS),
    "on_expired_lease": (["park", lambda key: True], NO_LEASES),
    "on_store_error": (["process"], TRANSACTIONS),
    "retry_for": ([ValueError], ()),
    "idempotent_for": ([ValueError], ()),
    "dead_for": ([ValueError], ()),
    "max_attempts": ([2], ()),
    "max_deaths": ([2], NO_LEASES - TRANSACTIONS),
    "backoff": ([Backoff(2)], ()),
    "on_missing_key": (["process"], ()),
    "batch": ([True], ()),
    "concurrency": ([1], ()),
    "on_cancel": (["park"], ()),
    "codec": ([JsonCodec()], POSITIONS),
    "queue": (["orders.v2"], ()),
    "registered": ([False], ()),
}


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_that_the_checker_cannot_honour_is_refused(option, checker):
    values, refusing = OPTIONS[option]
    for value in values:
        used = CHECKERS[checker]()
        try:
            refused = nullcontext()
            if checker in refusing:
                refused = pytest.raises(
                    ConfigurationError, match=f"{option}=.* cannot go with {type(used).__name__}"
                )
            with refused:
                declare(print_message, checker=used, **{option: value})
        finally:
            used.close()


def test_each_option_is_tried_with_each_checker():
    options = set(inspect.signature(Registry.consumer).parameters) - {"self", "subject", "checker", "group"}
    assert options == {*OPTIONS, "handler_timeout_s"}, (
        "handler_timeout_s is for `async def`, whatever the checker"
    )


def print_message(message):
    message.json()


def takes_a_session(message, session: Session):
    pass


def takes_a_string(message, session: str):
    pass


def test_one_subject_and_group_has_one_consumer():
    registry = Registry()
    registry.consumer("orders", checker=MemoryChecker())(print_message)
    with pytest.raises(ConfigurationError, match="another"):
        registry.consumer("orders", checker=MemoryChecker())(print_message)


def test_a_queue_with_a_new_name_forgets_no_key():
    broker, checker, ran = MemoryBroker(), MemoryChecker(), []

    def handle(message):
        if "unlucky" in message.subject + str(message.id):
            raise ValueError
        ran.append(message.id)

    for queue in (None, "orders.v2"):
        registry = Registry()
        consumer = registry.consumer("orders", checker=checker, queue=queue, max_attempts=1)(handle)
        assert (consumer.subject, consumer.name) == (queue or "orders", "orders:default")
        for name in ("1", "2" if queue else "unlucky"):
            broker.publish(Message(consumer.subject, id=name))
        Worker(registry, MemoryAdapter(broker, until_empty=True)).run()
    assert ran == ["1", "2"]
    broker.publish(Message("orders.v2", id="unlucky"))
    assert Worker(registry, MemoryAdapter(broker, until_empty=True)).run()[Outcome.DEAD] == 1
    assert redrive(consumer, MemoryAdapter(broker), idle_s=0.3) == Redriven(returned=1, reopened=1)


def test_attributes_of_a_handler_are_not_those_of_its_consumer():
    def handle(message):
        """Ship it."""

    handle.subject, handle.group, handle.options, handle._binding, handle.note = "other", "x", 5, "y", "kept"
    consumer = declare(handle)
    assert (consumer.subject, consumer.group) == ("orders", "default")
    assert consumer(message()).outcome is Outcome.PROCESSED
    assert (consumer.__name__, consumer.__doc__) == ("handle", "Ship it.")
    assert consumer.__wrapped__.note == "kept"


def wrapping(function):
    @functools.wraps(function)
    def call(*arguments):
        return function(*arguments)

    return call


@pytest.mark.parametrize(
    "handler_of",
    [
        lambda inner: inner,
        lambda inner: inner.process,
        functools.partial,
        wrapping,
        lambda inner: functools.partial(wrapping(inner)),
    ],
    ids=["itself", "its method", "partial", "wrapped", "both"],
)
def test_a_consumer_is_no_handler_of_another(handler_of):
    registry = Registry()
    inner = registry.consumer("orders", checker=MemoryChecker())(print_message)
    with pytest.raises(ConfigurationError, match="orders:default is a consumer already"):
        registry.consumer("orders", group="outer", checker=MemoryChecker())(handler_of(inner))
    assert list(registry.consumers) == ["orders:default"]


@pytest.mark.parametrize(
    "word", ["1", "true", "yes", "orders", ":", "orders:", "a:b:c", "orders.paid billing"]
)
def test_the_kill_switch_refuses_a_word_that_it_does_not_know(monkeypatch, word):
    monkeypatch.setenv("IDEMPOTENT_DISABLED", f"mail:default,{word}")
    with pytest.raises(ConfigurationError, match="write all, or names of consumers"):
        declare(print_message)
    registry = Registry()
    registry.checker("db", MemoryChecker())
    consumer = registry.consumer("orders", checker="db")(print_message)
    with pytest.raises(ConfigurationError, match="IDEMPOTENT_DISABLED"):
        registry.check()
    with pytest.raises(ConfigurationError, match="IDEMPOTENT_DISABLED"):
        consumer.process(message())


@pytest.mark.parametrize(
    "word", ["all", "ALL", " All ", "orders:default", "mail:default, orders:default,", ""]
)
def test_the_kill_switch_knows_all_and_names(monkeypatch, word):
    monkeypatch.setenv("IDEMPOTENT_DISABLED", word)
    assert declare(print_message).binding.disabled is bool(word)


@pytest.mark.parametrize("name", ["me:secret@host/db", "redis:secret@host", "secret@host"])
def test_a_url_that_is_mistaken_for_a_name_is_not_shown(name):
    consumer = Registry().consumer("orders", checker=name)(print_message)
    with pytest.raises(UnknownCheckerError, match="lacks '://'") as refused:
        consumer.process(message())
    assert "secret" not in str(refused.value)
