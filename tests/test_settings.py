"""Every setting of every public constructor: a value of another kind is an error that says what to write.

Long because it is one table.
"""

from __future__ import annotations

import inspect
import math
import operator
import re
from datetime import timedelta

import pytest

from idempotent import Backoff, Message, Registry, Worker
from idempotent.adapters import adapter_from_url
from idempotent.adapters.activemq import StompAdapter
from idempotent.adapters.files import FileAdapter
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from idempotent.adapters.rabbitmq import RabbitMqAdapter
from idempotent.adapters.spark import IdempotentRun, StoreConfig
from idempotent.checkers import (
    AttemptChecker,
    MemoryChecker,
    OffsetChecker,
    RedisChecker,
    SqlChecker,
    TransactionalSqlChecker,
    checker_from_url,
)
from idempotent.codecs import JsonCodec
from idempotent.errors import ConfigurationError
from idempotent.observe import Observer
from idempotent.outbox import Outbox, Relay

SECONDS = ("30", timedelta(seconds=5), None, True, math.inf, math.nan, -1, [], b"1", 1e30)
WHOLE = ("4", 4.5, None, True, -1, [], b"1", math.inf)
FLAG = ("false", "true", 1, None, "")
TEXT = ("", None, 5, b"x", [])
CALLED = (5, "lambda m: m.id")
CHOICE = ("nonsense", 5, [], "")
NAMED = (5, None, "", MemoryChecker, object())
EXCEPTIONS = ([ValueError], "ValueError", 5, None, (ValueError, "KeyError"), ValueError("x"))


def without(values, *others):
    return tuple(value for value in values if not any(value is other for other in others))


OR_NONE = {"seconds": without(SECONDS, None), "whole": without(WHOLE, None), "flag": without(FLAG, None)}
OR_NONE |= {"text": without(TEXT, None)}


async def asks(key):
    return True


def consume(**options):
    options = {"subject": "orders", "checker": "named", **options}
    return Registry().consumer(options.pop("subject"), **options)


def worker(**options):
    options = {"registry": Registry(), "adapter": MemoryAdapter(MemoryBroker()), **options}
    return Worker(**options)


URL = "sqlite:///settings.db"


def begin(**options):
    options = {"consumer": "orders", "run_id": "1", **options}
    return IdempotentRun.begin(options.pop("store", StoreConfig("memory://")), **options)


MAKERS = {
    "consumer": (Registry().consumer, consume),
    "Backoff": (Backoff, Backoff),
    "Outbox": (Outbox, lambda **options: Outbox(options.pop("engine_or_url", URL), **options)),
    "Relay": (
        Relay,
        lambda **options: Relay(
            options.pop("outbox", Outbox(URL)),
            options.pop("publisher", MemoryAdapter(MemoryBroker())),
            **options,
        ),
    ),
    "Worker": (Worker, worker),
    "Registry": (Registry, Registry),
    "MemoryChecker": (MemoryChecker, MemoryChecker),
    "AttemptChecker": (AttemptChecker, AttemptChecker),
    "SqlChecker": (SqlChecker, lambda **options: SqlChecker(options.pop("engine_or_url", URL), **options)),
    "TransactionalSqlChecker": (
        TransactionalSqlChecker,
        lambda **options: TransactionalSqlChecker(options.pop("engine_or_url", URL), **options),
    ),
    "OffsetChecker": (
        OffsetChecker,
        lambda **options: OffsetChecker(options.pop("engine_or_url", URL), **options),
    ),
    "RedisChecker": (
        RedisChecker,
        lambda **options: RedisChecker(options.pop("client_or_url", "redis://127.0.0.1:1"), **options),
    ),
    "StoreConfig": (StoreConfig, lambda **options: StoreConfig(options.pop("url", URL), **options)),
    "IdempotentRun": (IdempotentRun.begin, begin),
    "MemoryBroker": (MemoryBroker, MemoryBroker),
    "MemoryAdapter": (
        MemoryAdapter,
        lambda **options: MemoryAdapter(options.pop("broker", MemoryBroker()), **options),
    ),
    "FileAdapter": (FileAdapter, lambda **options: FileAdapter(options.pop("path", "-"), **options)),
    "RabbitMqAdapter": (
        RabbitMqAdapter,
        lambda **options: RabbitMqAdapter(options.pop("url", "amqp://127.0.0.1:1"), **options),
    ),
    "StompAdapter": (
        StompAdapter,
        lambda **options: StompAdapter(options.pop("url", "stomp://127.0.0.1:1"), **options),
    ),
    "KafkaAdapter": (
        KafkaAdapter,
        lambda **options: KafkaAdapter(options.pop("url_or_bootstrap", "127.0.0.1:1"), **options),
    ),
}

# What each setting refuses. A setting that is not here fails the test below.
RETENTION = {"retention_s": (*SECONDS, 0), "dead_retention_s": OR_NONE["seconds"] + (0,)}
CHECKER = {"lease_s": OR_NONE["seconds"] + (0,), **RETENTION}
MEMORY = {**CHECKER, "max_keys": (*WHOLE, 0)}
TABLE = {"engine_or_url": (5, None, ""), "table": (*TEXT, "a b", "x;y"), "schema": OR_NONE["text"]}
IN_TRANSACTIONS = {
    **TABLE,
    **RETENTION,
    "lock_timeout_s": (*SECONDS, 10000000),
    "savepoints": FLAG,
    "strict": FLAG,
}
REFUSED = {
    "Outbox": {**TABLE, "notify": FLAG, "observers": (5, Observer(), [5])},
    "Relay": {
        "outbox": (5, None, URL),
        "publisher": (5, None, {}, {"": 5}),
        "batch_size": (*WHOLE, 0),
        "lease_s": (*SECONDS, 0),
        "poll_s": (*SECONDS, 0),
        "on_parked": (*CHOICE, None),
        "backoff": (5, "1", Backoff, None),
        "fail_fast": FLAG,
        "health_file": (5, True, "/dev/null", "/"),
        "observers": (5, Observer(), [5]),
    },
    "consumer": {
        "subject": TEXT,
        "checker": NAMED,
        "group": TEXT,
        "key": (*CALLED, asks),
        "retry_for": EXCEPTIONS,
        "idempotent_for": EXCEPTIONS,
        "dead_for": EXCEPTIONS,
        "max_attempts": (*OR_NONE["whole"], 0, 2**31),
        "max_deaths": (*WHOLE, 0, 2**31),
        "backoff": (5, "1", Backoff, timedelta(seconds=1)),
        "on_missing_key": (*CHOICE, None),
        "on_expired_lease": (*CHOICE, None),
        "on_store_error": (*CHOICE, None),
        "fingerprint": (*CALLED, asks),
        "store_result": FLAG,
        "batch": FLAG,
        "concurrency": OR_NONE["whole"] + (0,),
        "handler_timeout_s": OR_NONE["seconds"] + (0,),
        "on_cancel": (*CHOICE, None),
        "codec": (5, "json", object(), JsonCodec),
        "queue": OR_NONE["text"],
        "registered": FLAG,
    },
    "Backoff": {
        "initial_s": SECONDS,
        "maximum_s": SECONDS,
        "multiplier": ("2", None, True, math.inf, math.nan, 0.5, []),
        "jitter": ("0.5", None, True, math.inf, math.nan, -0.1, 1.1, []),
    },
    "Worker": {
        "registry": (None, "shop:registry", Registry),
        "adapter": (None, "memory://", MemoryAdapter),
        "concurrency": (*WHOLE, 0),
        "batch_size": (*WHOLE, 0),
        "drain_timeout_s": SECONDS,
        "consumers": ("orders:default", [], 5),
        "max_held": (*WHOLE, 0),
        "gc_interval_s": OR_NONE["seconds"] + (0,),
        "fail_fast": FLAG,
        "health_file": (5, "", b"x", "/dev/null", "/"),
        "redact": FLAG,
        "services": (5, None, ["x"]),
        "on_result": CALLED,
    },
    "Registry": {"observers": (5, None, Observer(), [5], [Observer])},
    "MemoryChecker": {**MEMORY, "clock": CALLED},
    "AttemptChecker": {**MEMORY, "clock": CALLED},
    "SqlChecker": {**TABLE, **CHECKER, "combine": FLAG},
    "TransactionalSqlChecker": IN_TRANSACTIONS,
    "OffsetChecker": IN_TRANSACTIONS,
    "RedisChecker": {
        "client_or_url": (5, None, ""),
        "prefix": (*TEXT, "{a}", "\n"),
        **CHECKER,
        "combine": FLAG,
    },
    "MemoryBroker": {
        "seed": without(WHOLE, -1),
        "duplicate_rate": ("0.5", None, True, math.nan, math.inf, -1, 1.5),
        "reorder_window": WHOLE,
        "redeliver_rate": ("0.5", None, True, math.nan, math.inf, -1, 1),
        "max_deliveries": OR_NONE["whole"] + (0,),
    },
    "StoreConfig": {
        "url": TEXT,
        "table": (*TEXT, "a b"),
        "prefix": (*TEXT, "{a}"),
        "retention_s": (*SECONDS, 0),
    },
    "IdempotentRun": {
        "on_conflict": CHOICE,
        "wait_s": SECONDS,
        "lease_s": (*SECONDS, 0),
        "chunk": (*WHOLE, 0),
        "takeover": FLAG,
    },
    "MemoryAdapter": {"until_empty": FLAG},
    "FileAdapter": {
        "subject": OR_NONE["text"],
        "id_field": OR_NONE["text"],
        "max_line_bytes": (*WHOLE, 0),
    },
    "RabbitMqAdapter": {
        "url": TEXT,
        "prefetch": OR_NONE["whole"] + (0, 65536),
        "ack": CHOICE,
        "ack_batch": OR_NONE["whole"] + (0,),
        "ack_interval_s": (*SECONDS, 0),
        "pull": FLAG,
        "declare": FLAG,
        "queue_type": CHOICE,
        "dead_letter_queue": OR_NONE["text"],
        "per_channel_prefetch": FLAG,
        "heartbeat_s": (*WHOLE, 0),
        "fail_fast": FLAG,
        "ca_file": OR_NONE["text"],
        "management": OR_NONE["text"],
        "cert_file": OR_NONE["text"],
        "key_file": OR_NONE["text"],
    },
    "StompAdapter": {
        "url": TEXT,
        "ack": CHOICE,
        "prefetch": (*WHOLE, 0),
        "optimize_acknowledge": FLAG,
        "accept_empty": FLAG,
        "optimize_ack_timeout_s": (*SECONDS, 0),
        "client_id": OR_NONE["text"],
        "durable_subscription": OR_NONE["text"],
        "heartbeat_s": (*SECONDS, 0),
        "receipts": FLAG,
        "receipt_timeout_s": (*SECONDS, 0),
        "connect_timeout_s": (*SECONDS, 0),
        "dead_letter_destination": OR_NONE["text"],
        "scheduler": OR_NONE["flag"],
        "fail_fast": FLAG,
        "ca_file": OR_NONE["text"],
    },
    "KafkaAdapter": {
        "fenced": FLAG,
        "url_or_bootstrap": TEXT,
        "semantics": CHOICE,
        "ordering": CHOICE,
        "transactional_id": OR_NONE["text"],
        "max_in_flight_per_partition": OR_NONE["whole"] + (0,),
        "max_pending_per_partition": (*WHOLE, 0),
        "max_pending_bytes": (*WHOLE, 0),
        "commit_interval_s": (*SECONDS, 0),
        "commit_every": (*WHOLE, 0),
        "dead_letter_topic": OR_NONE["text"],
        "retry_topic": FLAG,
        "idempotent_producer": OR_NONE["flag"],
        "publish_timeout_s": (*SECONDS, 0),
        "fail_fast": FLAG,
        "security_protocol": OR_NONE["text"],
        "sasl_mechanism": OR_NONE["text"],
        "sasl_username": OR_NONE["text"],
        "sasl_password": OR_NONE["text"],
        "ssl_ca_location": OR_NONE["text"],
    },
}
# Objects of the application or its client, whose own errors say more.
UNCHECKED = {
    "MemoryBroker.clock",
    "MemoryAdapter.broker",
    "FileAdapter.path",
    "FileAdapter.rejects",
    "FileAdapter.clock",
    "KafkaAdapter.acks",
    "KafkaAdapter.client_config",
    "KafkaAdapter.consumer_config",
    "KafkaAdapter.producer_config",
    "RabbitMqAdapter.backoff",
    "StompAdapter.backoff",
    "IdempotentRun.store",
    "IdempotentRun.consumer",
    "IdempotentRun.run_id",
    "IdempotentRun.fingerprint",
}
CASES = [
    # Without addresses: the processes of a run must name their tests alike.
    pytest.param(
        maker, setting, value, id=f"{maker}-{setting}-{re.sub(' at 0x[0-9a-f]+', '', repr(value))}"[:80]
    )
    for maker, settings in REFUSED.items()
    for setting, values in settings.items()
    for value in values
]


@pytest.mark.parametrize("maker", MAKERS)
def test_every_setting_is_in_the_table(maker):
    signature, _ = MAKERS[maker]
    settings = set(inspect.signature(signature).parameters) - {"self"}
    named = set(REFUSED[maker]) | {
        name.partition(".")[2] for name in UNCHECKED if name.startswith(f"{maker}.")
    }
    assert settings == named


@pytest.mark.parametrize(("maker", "setting", "value"), CASES)
def test_a_value_of_another_kind_is_refused_with_the_name_of_its_setting(maker, setting, value):
    _, make = MAKERS[maker]
    with pytest.raises(ConfigurationError) as raised:
        make(**{setting: value})
    said = str(raised.value)
    assert setting in said or setting in {"engine_or_url", "client_or_url", "url", "url_or_bootstrap"}, said


@pytest.mark.parametrize("maker", sorted(set(MAKERS) - {"IdempotentRun"}))
def test_the_defaults_are_right(maker):
    _, make = MAKERS[maker]
    make()


@pytest.mark.parametrize("make", [adapter_from_url, checker_from_url])
@pytest.mark.parametrize("url", [None, 5, "", b"memory://"])
def test_what_is_no_url_is_refused(make, url):
    with pytest.raises(ConfigurationError):
        make(url)


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        ("30", r"write float\('30'\)"),
        (timedelta(minutes=1), "write 60"),
        (math.inf, "at most"),
        (-1, "positive"),
    ],
)
def test_the_error_of_a_duration_says_what_to_write(value, advice):
    with pytest.raises(ConfigurationError, match=advice):
        MemoryChecker(retention_s=value)


class Orders:
    def handle(self, message):
        pass


def needs_more(message, *, tenant):
    pass


@pytest.mark.parametrize(
    ("handler", "advice"),
    [
        (Orders.handle, "is a method, decorated where no instance exists"),
        (Orders, "make an instance"),
        (Orders(), "function that takes a message"),
        (5, "function that takes a message"),
        (needs_more, r"functools.partial\(needs_more, tenant=...\)"),
    ],
    ids=["method", "class", "object", "number", "keyword"],
)
def test_what_cannot_be_called_with_a_message_is_refused(handler, advice):
    with pytest.raises(ConfigurationError, match=advice):
        consume(checker=MemoryChecker())(handler)


def test_the_method_of_an_instance_is_a_handler():
    consumer = consume(checker=MemoryChecker())(Orders().handle)
    assert consumer(Message("orders", id="1")).error is None


@pytest.mark.parametrize("option", ["key", "fingerprint"])
@pytest.mark.parametrize("function", [lambda: 1, lambda message, attempt: 1, needs_more])
def test_a_function_that_cannot_take_a_message_is_refused(option, function):
    with pytest.raises(ConfigurationError, match=f"{option} must be a function of 1 argument"):
        consume(checker=MemoryChecker(), **{option: function})


@pytest.mark.parametrize("function", [str, lambda *messages: 1, Orders().handle, operator.attrgetter("id")])
def test_a_function_that_can_is_taken(function):
    consume(checker=MemoryChecker(), key=function)
