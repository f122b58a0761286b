"""Server: the address of a broker, its credentials, and connections to it."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from idempotent.adapters.rabbitmq.client import pika
from idempotent.adapters.rabbitmq.reading import TolerantConnection
from idempotent.adapters.rabbitmq.topology import fault_in_name
from idempotent.errors import ConfigurationError

_PORTS: Final = {"amqp": 5672, "amqps": 5671}
_EXAMPLE: Final = "amqp://user:password@host:5672/vhost"
# `receive` must return soon, so an attempt to connect must end.
_CONNECT_TIMEOUT_S: Final = 5.0
_HANDSHAKE_TIMEOUT_S: Final = 10.0


class Connection(pika.BlockingConnection):  # type: ignore[misc] # pika has no types here
    """A connection whose calls wait."""

    @property
    def server_properties(self) -> Mapping[str, Any]:
        """What the broker tells of itself, as pika's other connections have it."""
        return self._impl.server_properties or {}


@dataclass(frozen=True, slots=True)
class Server:
    """The address of a broker, and the credentials.

    Attributes:
        hosts: host and port of each node of a cluster.
        where: the address without credentials, for logs and errors.
    """

    hosts: tuple[tuple[str, int], ...]
    vhost: str
    where: str
    heartbeat_s: int
    credentials: Any = field(repr=False)
    tls: ssl.SSLContext | None = field(repr=False)

    def connect(self, attempt: int) -> Any:
        """Open a blocking connection; successive attempts take the hosts in turn.

        Raises:
            AMQPError, OSError: the attempt failed.
        """
        return Connection(self._parameters(attempt), _impl_class=TolerantConnection)

    def publishing(self, attempt: int, **callbacks: Callable[..., None]) -> Any:
        """Begin to open a connection that never waits; pika calls `on_open_callback` and its like in its own loop."""
        return TolerantConnection(self._parameters(attempt), **callbacks)

    def _parameters(self, attempt: int) -> Any:
        host, port = self.hosts[attempt % len(self.hosts)]
        return pika.ConnectionParameters(
            host=host,
            port=port,
            virtual_host=self.vhost,
            credentials=self.credentials,
            heartbeat=self.heartbeat_s,
            ssl_options=pika.SSLOptions(self.tls, host) if self.tls else None,
            socket_timeout=_CONNECT_TIMEOUT_S,
            stack_timeout=_HANDSHAKE_TIMEOUT_S,
            client_properties={"connection_name": "idempotent-consumer"},
        )


def server_at(
    url: str,
    *,
    heartbeat_s: int = 60,
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
) -> Server:
    """The server of an `amqp://` or `amqps://` URL. Several hosts, separated by commas, are tried in turn.

    Raises:
        ConfigurationError: the URL is invalid, or an option does not go with it.
    """
    # These errors repeat no part of the URL and have no cause: either may contain the password.
    try:
        parts = urlsplit(url)
        if parts.scheme not in _PORTS:
            raise ConfigurationError(f"a RabbitMQ URL starts with amqp:// or amqps://, as in {_EXAMPLE}")
        if parts.query or parts.fragment:
            raise ConfigurationError(
                "RabbitMqAdapter takes its options as keywords; only adapter_from_url reads them from the URL"
            )
        login, _, places = parts.netloc.rpartition("@")
        hosts = tuple(_host_and_port(place, _PORTS[parts.scheme]) for place in places.split(","))
    except ValueError:
        raise ConfigurationError(
            f"not a RabbitMQ URL. Write {_EXAMPLE}; in a password, '/', '#', '?', '@' and '[' are written %2F, %23, "
            "%3F, %40 and %5B"
        ) from None
    if heartbeat_s < 1:
        # Without heartbeats a dead connection goes unnoticed.
        raise ConfigurationError(f"heartbeat_s must be at least 1, not {heartbeat_s}")
    user, _, password = login.partition(":")
    vhost = unquote(parts.path.removeprefix("/")) or "/"
    fault = fault_in_name(vhost)
    if fault is not None:
        raise ConfigurationError(f"no virtual host can be named {vhost!r}: {fault}")
    return Server(
        hosts=hosts,
        vhost=vhost,
        where=f"{parts.scheme}://{places}/{'' if vhost == '/' else vhost}",
        heartbeat_s=heartbeat_s,
        credentials=pika.PlainCredentials(unquote(user) or "guest", unquote(password) or "guest"),
        tls=_tls(parts.scheme == "amqps", ca_file, cert_file, key_file),
    )


def _host_and_port(place: str, default: int) -> tuple[str, int]:
    parts = urlsplit(f"//{place}")
    return parts.hostname or "localhost", parts.port or default


def _tls(
    wanted: bool,  # noqa: FBT001 - the first word of the URL's scheme
    ca_file: str | None,
    cert_file: str | None,
    key_file: str | None,
) -> ssl.SSLContext | None:
    if not wanted:
        given: Sequence[str | None] = (ca_file, cert_file, key_file)
        if any(given):
            raise ConfigurationError("ca_file, cert_file and key_file need an amqps:// URL")
        return None
    if key_file and not cert_file:
        raise ConfigurationError("key_file needs a cert_file")
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if cert_file:
            context.load_cert_chain(cert_file, key_file)
    except OSError as error:
        raise ConfigurationError(f"cannot read the TLS files: {error}") from error
    return context
