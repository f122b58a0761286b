"""Outputs: what a handler returned, as it is stored, and as it is sent again."""

from __future__ import annotations

import json
from typing import Any, Final

from faststream import Response
from faststream.message import encode_message

from idempotent.codecs import Codec, JsonCodec
from idempotent.errors import ConfigurationError, described
from idempotent.processing.binding import RESULT_LIMIT

_HEAD_BYTES: Final = 100


def stored_of(response: Response, serializer: Any, codec: Codec | None) -> bytes:
    """What is stored of an output: a line of JSON, then the body."""
    kind: str | None = None
    try:
        if codec is None:
            body, kind = encode_message(response.body, serializer)
        else:
            body = codec.encode(response.body)
        key = getattr(response, "key", None)
        exchange = getattr(response, "exchange", None)
        head = {
            "class": type(response).__name__,
            "content_type": kind,
            "is_none": response.body is None,
            "headers": response.headers,
            "correlation_id": response.correlation_id,
            "key": [key.hex()] if isinstance(key, bytes) else key,
            "timestamp_ms": getattr(response, "timestamp_ms", None),
            "exchange": None if exchange is None else exchange.name,
            "options": {
                **getattr(response, "publish_options", {}),
                **getattr(response, "message_options", {}),
            },
        }
        stored = JsonCodec().encode(head) + b"\n" + body
    except Exception as error:
        raise ConfigurationError(
            f"an output that cannot be stored would be lost with a process that dies: {described(error)}; "
            "return plain values, dataclasses or pydantic models, or give codec="
        ) from error
    if len(stored) + _HEAD_BYTES > RESULT_LIMIT:
        raise ConfigurationError(
            f"the output has {len(stored)} bytes, and {RESULT_LIMIT} can be stored: publish it through the outbox"
        )
    return stored


def output_in(stored: bytes, codec: Codec | None) -> tuple[Response, str | None]:
    """An output again, and its content type."""
    line, _, data = stored.partition(b"\n")
    head = json.loads(line)
    body: Any = data if codec is None else codec.decode(data)
    body = None if head["is_none"] else body
    headers, correlation_id = head["headers"], head["correlation_id"]
    if head["class"] == "RabbitResponse":
        from faststream.rabbit import RabbitResponse

        options = {"headers": headers, "correlation_id": correlation_id, **head["options"]}
        return RabbitResponse(body, exchange=head["exchange"], **options), head["content_type"]
    if head["class"] == "KafkaResponse":
        from faststream.confluent import KafkaResponse

        key = bytes.fromhex(head["key"][0]) if isinstance(head["key"], list) else head["key"]
        options = {"headers": headers, "correlation_id": correlation_id, "timestamp_ms": head["timestamp_ms"]}
        return KafkaResponse(body, key=key, **options), head["content_type"]
    return Response(body, headers=headers, correlation_id=correlation_id), head["content_type"]
