"""The address of the server in a URL, and the same URL through a proxy."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from idempotent.checkers.urls import scheme_of
from idempotent.testing.proxy import Proxy
from tests.torture.kafka_addresses import KafkaAddresses

_PORTS: Final = {
    "amqp": 5672,
    "kafka": 9092,
    "mysql": 3306,
    "mariadb": 3306,
    "postgresql": 5432,
    "redis": 6379,
    "stomp": 61613,
}
_LOOPBACK: Final = "127.0.0.1"
# A server that does not answer a packet has nothing that could be lost.
_PATIENCE_S: Final = 1.0


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int


def address_of(url: str) -> Address | None:
    """The server's address; None where no proxy can stand in between: a file, several servers, or TLS."""
    parts = urlsplit(scheme_of(url).store_url(url))
    scheme = parts.scheme.partition("+")[0]
    if scheme not in _PORTS or "," in parts.netloc or "+ssl" in parts.scheme or not parts.hostname:
        return None
    return Address(parts.hostname, parts.port or _PORTS[scheme])


def behind(url: str, port: int) -> str:
    """The URL with a proxy on loopback instead of its server."""
    scheme = scheme_of(url)
    parts = urlsplit(scheme.store_url(url))
    user, at, _ = parts.netloc.rpartition("@")
    parts = parts._replace(netloc=f"{user}{at}{_LOOPBACK}:{port}")
    if parts.scheme.startswith("postgresql") and "sslmode" not in parse_qs(parts.query):
        # The proxy chooses packets by their content.
        parts = parts._replace(query="&".join(filter(None, (parts.query, "sslmode=disable"))))
    return scheme.removed + parts.geturl()


def proxied(url: str) -> tuple[Proxy | None, str]:
    """A proxy in front of the server of a URL, and the URL through it; no proxy where none can stand."""
    address = address_of(url)
    if address is None:
        return None, url

    def translated() -> KafkaAddresses:
        return KafkaAddresses(address, Address(_LOOPBACK, proxy.port))

    is_kafka = urlsplit(url).scheme == "kafka"
    proxy = Proxy(*address, patience_s=_PATIENCE_S, translate=translated if is_kafka else None)
    return proxy, behind(url, proxy.port)
