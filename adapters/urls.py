"""adapter_from_url: the adapter that a URL names."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from idempotent.adapters.base import Adapter
from idempotent.adapters.files import STANDARD_INPUT
from idempotent.errors import ConfigurationError
from idempotent.validation import from_text, keywords, text

ADAPTERS: Final = {
    "amqp": "idempotent.adapters.rabbitmq:RabbitMqAdapter",
    "amqps": "idempotent.adapters.rabbitmq:RabbitMqAdapter",
    "file": "idempotent.adapters.files:FileAdapter",
    "kafka": "idempotent.adapters.kafka:KafkaAdapter",
    "memory": "idempotent.adapters.memory:MemoryAdapter",
    "stomp": "idempotent.adapters.activemq:StompAdapter",
    "stomp+ssl": "idempotent.adapters.activemq:StompAdapter",
}


def adapter_from_url(url: str, **options: Any) -> Adapter:
    """Make an adapter.

    Args:
        url: `memory://NAME` (a broker shared by that name within this process), `file:///path/to/lines.jsonl`,
            or `file://-` (or just `-`) for standard input; `amqp://` or `amqps://` for RabbitMQ;
            `stomp://host:61613` or `stomp+ssl://` for ActiveMQ; `kafka://host:9092,host:9092` for Kafka.
            The words after `?` are the constructor's keywords: `file:///data/orders.jsonl?id_field=order_id`.
        options: more of those keywords; they win over the URL's.

    Raises:
        ConfigurationError: an unknown scheme or keyword, or a value that does not fit.
        MissingExtraError: the client library of this broker is not installed.
    """
    text(url, "url")
    address, _, query = (f"file://{url}" if url == STANDARD_INPUT else url).partition("?")
    scheme, colon, rest = address.partition("://")
    scheme = scheme.lower() if colon else ""
    if scheme not in ADAPTERS:
        known = ", ".join(f"{scheme}://" for scheme in sorted(ADAPTERS))
        # The scheme alone: the rest of a URL may hold a password.
        raise ConfigurationError(f"no adapter for a URL with the scheme {scheme!r}; known: {known}")
    module, _, name = ADAPTERS[scheme].partition(":")
    adapter: type[Adapter] = getattr(importlib.import_module(module), name)
    kinds = {name: kind for maker in (adapter, *adapter.also_made) for name, kind in keywords(maker).items()}
    if "fail_fast" not in kinds:
        options.pop("fail_fast", None)  # an adapter without this keyword never waits for a broker
    try:
        return adapter.from_url(f"{scheme}://{rest}", **{**_options_from_query(query, kinds), **options})
    except TypeError as error:
        raise ConfigurationError(str(error)) from error


def letters_adapter_from_url(url: str) -> Adapter:
    """Make an adapter that reads dead letters, to look at them or to return some.

    Raises:
        ConfigurationError, MissingExtraError: as `adapter_from_url`.
    """
    # Where letters wait for each other, as in Kafka's order by partition, one that stays hides those behind it.
    in_no_order = {"ordering": "none"} if url.startswith("kafka:") and "ordering=" not in url else {}
    return adapter_from_url(url, **in_no_order)


def _options_from_query(query: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    """The options that a URL's query gives, converted to their types.

    Raises:
        ConfigurationError: an unknown option, or a value of another type.
    """
    options = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in kinds:
            known = f"known: {', '.join(sorted(kinds))}"
            if "@" in query:  # the name may be a part of a password
                raise ConfigurationError(f"unknown option; in a password, '?' is written %3F; {known}")
            raise ConfigurationError(f"unknown option {name!r}; {known}")
        options[name] = from_text(name, value, kinds)
    return options
