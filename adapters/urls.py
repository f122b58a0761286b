"""adapter_from_url: the adapter that a URL names."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from idempotent.adapters.base import Adapter
from idempotent.adapters.files import STANDARD_INPUT, FileAdapter
from idempotent.adapters.memory import MemoryAdapter
from idempotent.adapters.memory.broker import MemoryBroker, named_broker
from idempotent.errors import ConfigurationError

_TRUTH: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


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
    """
    parts = urlsplit("file://-" if url == STANDARD_INPUT else url)
    make = _SCHEMES.get(parts.scheme)
    if make is None:
        known = ", ".join(f"{scheme}://" for scheme in sorted(_SCHEMES))
        # The scheme alone: the rest of a URL may hold a password.
        raise ConfigurationError(f"no adapter for a URL with the scheme {parts.scheme!r}; known: {known}")
    return make(parts, options)


def options_from_query(query: str, *constructors: Callable[..., object]) -> dict[str, Any]:
    """The keywords of `constructors` that a URL's query gives, converted to the types of their annotations.

    Raises:
        ConfigurationError: a keyword that none of them has, or a value of another type.
    """
    kinds = {name: kind for constructor in constructors for name, kind in _keywords(constructor).items()}
    options = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in kinds:
            raise ConfigurationError(f"unknown option {name!r}; known: {', '.join(sorted(kinds))}")
        options[name] = _converted(name, text, kinds[name])
    return options


def _memory(url: SplitResult, more: Mapping[str, Any]) -> Adapter:
    options = {**options_from_query(url.query, MemoryBroker, MemoryAdapter), **_without_waiting(more)}
    of_adapter = _keywords(MemoryAdapter)
    own = {name: options.pop(name) for name in list(options) if name in of_adapter}
    try:
        return MemoryAdapter(named_broker(unquote(url.netloc + url.path), **options), **own)
    except TypeError as error:
        raise ConfigurationError(str(error)) from error


def _file(url: SplitResult, more: Mapping[str, Any]) -> Adapter:
    options = {**options_from_query(url.query, FileAdapter), **_without_waiting(more)}
    path = unquote(url.netloc.removeprefix("localhost") + url.path)
    if not path:
        raise ConfigurationError("a file URL needs a path: file:///path/to/lines.jsonl, or file://-")
    try:
        return FileAdapter(path, **options)
    except TypeError as error:
        raise ConfigurationError(str(error)) from error


def _without_waiting(options: Mapping[str, Any]) -> dict[str, Any]:
    """For adapters that never wait for a broker: for whoever asks for any of them not to."""
    return {name: value for name, value in options.items() if name != "fail_fast"}


def _amqp(url: SplitResult, more: Mapping[str, Any]) -> Adapter:
    from idempotent.adapters.rabbitmq import RabbitMqAdapter

    options = {**options_from_query(url.query, RabbitMqAdapter), **more}
    try:
        return RabbitMqAdapter(url._replace(query="").geturl(), **options)
    except TypeError as error:
        raise ConfigurationError(str(error)) from error


def _stomp(url: SplitResult, more: Mapping[str, Any]) -> Adapter:
    from idempotent.adapters.activemq import StompAdapter

    options = {**options_from_query(url.query, StompAdapter), **more}
    try:
        return StompAdapter(url._replace(query="").geturl(), **options)
    except TypeError as error:
        raise ConfigurationError(str(error)) from error


def _kafka(url: SplitResult, more: Mapping[str, Any]) -> Adapter:
    from idempotent.adapters.kafka import KafkaAdapter

    options = {**options_from_query(url.query, KafkaAdapter), **more}
    try:
        return KafkaAdapter(f"kafka://{url.netloc}{url.path}", **options)
    except TypeError as error:
        raise ConfigurationError(str(error)) from error


_SCHEMES: Final[Mapping[str, Callable[[SplitResult, Mapping[str, Any]], Adapter]]] = {
    "amqp": _amqp,
    "amqps": _amqp,
    "file": _file,
    "kafka": _kafka,
    "memory": _memory,
    "stomp": _stomp,
    "stomp+ssl": _stomp,
}


def _keywords(constructor: Callable[..., object]) -> dict[str, type]:
    """The keyword-only parameters that a text can stand for, with their types."""
    function = constructor.__init__ if isinstance(constructor, type) else constructor  # type: ignore[misc]
    hints = typing.get_type_hints(function)
    kinds = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = _plain(hints.get(name))
        if parameter.kind is parameter.KEYWORD_ONLY and kind is not None:
            kinds[name] = kind
    return kinds


def _plain(hint: Any) -> type | None:
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    plain = [member for member in members if member in (bool, int, float, str)]
    return plain[0] if plain else None


def _converted(name: str, text: str, kind: type) -> Any:
    try:
        return _TRUTH[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise ConfigurationError(f"option {name!r} must be of type {kind.__name__}, not {text!r}") from None
