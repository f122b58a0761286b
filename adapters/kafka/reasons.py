"""Why a broker of Kafka is not reached, from the errors that the client library reports."""

from __future__ import annotations

from typing import Final

from idempotent.adapters.kafka.client import ALL_BROKERS_DOWN, AUTHENTICATION, SSL, KafkaError, error_of

# Untrusted certificates need a person; a starting broker causes other TLS errors.
_UNTRUSTED: Final = "certificate"
_HANDSHAKE: Final = "SSL_HANDSHAKE"


def is_for_good(error: KafkaError) -> bool:
    """Whether another attempt would fail in the same way."""
    return error.code() == AUTHENTICATION or _is_untrusted(error)


def _is_untrusted(error: KafkaError) -> bool:
    text = error_of(error)
    # The library says it of the connection, too, with another code.
    return _UNTRUSTED in text and (error.code() == SSL or _HANDSHAKE in text)


def why_unreachable(last: KafkaError | None, *, was_up: bool = False) -> str:
    """The client's last error of a broker that does not answer, and what to check if it never did."""
    if last is None:
        return "no answer"
    text = error_of(last)
    if last.code() == ALL_BROKERS_DOWN:
        # The library also says this of brokers that went down, and of ports that close connections at once.
        return text if was_up else f"{text}; does the port want TLS or a login? See security_protocol"
    if last.code() == AUTHENTICATION:
        return f"{text}; check sasl_username, sasl_password and sasl_mechanism"
    if _is_untrusted(last):
        return f"{text}; check ssl_ca_location and the host name"
    if _HANDSHAKE in text and "PLAINTEXT" not in text:
        # Sometimes the library's own text names PLAINTEXT already.
        return f"{text}; is it a PLAINTEXT port? See security_protocol"
    return text
