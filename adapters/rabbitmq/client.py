"""The pika client: connections from URLs, and the meaning of its errors."""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from idempotent.errors import ConfigurationError, MissingExtraError

try:
    import pika
except ImportError as error:
    raise MissingExtraError("pika", "rabbitmq") from error
import pika.exceptions as pika_errors

__all__ = ["LOST", "Server", "pika", "pika_errors", "plain_error", "remedy_for", "server_at"]

# pika logs eight errors and a traceback for each failed attempt; the adapter logs one warning. Setting a level on
# this logger brings them back.
if logging.getLogger("pika").level == logging.NOTSET:
    logging.getLogger("pika").setLevel(logging.CRITICAL)

LOST: Final = (pika_errors.AMQPError, pika_errors.ChannelError, OSError)
"""What pika raises when a connection or one of its channels is lost."""

_PORTS: Final = {"amqp": 5672, "amqps": 5671}
_EXAMPLE: Final = "amqp://user:password@host:5672/vhost"
# `receive` must return soon, so an attempt to connect must end.
_CONNECT_TIMEOUT_S: Final = 5.0
_HANDSHAKE_TIMEOUT_S: Final = 10.0
# During a memory or disk alarm the broker reads nothing from connections that publish, not even acknowledgements.
_BLOCKED_TIMEOUT_S: Final = 60.0


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
        """Open a `BlockingConnection`; successive attempts take the hosts in turn.

        Raises:
            AMQPError, OSError: the attempt failed.
        """
        host, port = self.hosts[attempt % len(self.hosts)]
        parameters = pika.ConnectionParameters(
            host=host,
            port=port,
            virtual_host=self.vhost,
            credentials=self.credentials,
            heartbeat=self.heartbeat_s,
            ssl_options=pika.SSLOptions(self.tls, host) if self.tls else None,
            socket_timeout=_CONNECT_TIMEOUT_S,
            stack_timeout=_HANDSHAKE_TIMEOUT_S,
            blocked_connection_timeout=_BLOCKED_TIMEOUT_S,
            client_properties={"connection_name": "idempotent-consumer"},
        )
        return pika.BlockingConnection(parameters)


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
    return Server(
        hosts=hosts,
        vhost=vhost,
        where=f"{parts.scheme}://{places}/{'' if vhost == '/' else vhost}",
        heartbeat_s=heartbeat_s,
        credentials=pika.PlainCredentials(unquote(user) or "guest", unquote(password) or "guest"),
        tls=_tls(parts.scheme == "amqps", ca_file, cert_file, key_file),
    )


def remedy_for(error: BaseException) -> str | None:
    """What to do about an error that another attempt does not solve; None if it may."""
    if isinstance(error, _PROBABLE) and not _SAID_NO.search(str(error)):
        return None  # pika infers the cause from the time of the loss; the network may fail at that time too
    if isinstance(error, (pika_errors.ProbableAuthenticationError, pika_errors.AuthenticationError)):
        return "the broker refuses the user name or the password in the URL"
    if isinstance(error, ssl.SSLCertVerificationError):
        return "the broker's certificate is not trusted: check ca_file and the host name in the URL"
    if isinstance(error, ssl.SSLError):
        return (
            "TLS failed: does this port speak TLS (5671 by default), and does the broker ask for cert_file?"
        )
    code = getattr(error, "reply_code", None)
    text = str(getattr(error, "reply_text", ""))
    if isinstance(error, pika_errors.ProbableAccessDeniedError) or code == _NOT_ALLOWED:
        return "check that the virtual host in the URL exists and that the user may use it"
    if code == _ACCESS_REFUSED:
        return (
            "the user lacks a permission on this queue, or another consumer holds it exclusively; "
            "with declare=False nothing needs to be configured"
        )
    if code == _NOT_FOUND and "down or inaccessible" not in text:
        return "the queue does not exist: create it, or let declare=True do so"
    if code in (_PRECONDITION_FAILED, _NOT_IMPLEMENTED):
        return "the queue does not allow this option"
    return None


_TIMED_OUT: Final = "timed out"
_PROBABLE: Final = (pika_errors.ProbableAuthenticationError, pika_errors.ProbableAccessDeniedError)
# The broker's own answer, in pika's words: access refused, not allowed.
_SAID_NO: Final = re.compile(r"ConnectionClosedByBroker: \((403|530)\)")
_NOT_ALLOWED: Final = 530
_ACCESS_REFUSED: Final = 403
_NOT_FOUND: Final = 404
_PRECONDITION_FAILED: Final = 406
_NOT_IMPLEMENTED: Final = 540


def plain_error(error: BaseException) -> BaseException:
    """The error with a message in plain words, where pika gives only class names."""
    if isinstance(error, _PROBABLE):
        return ConnectionError(f"the connection was lost while it was being opened ({error})")
    if isinstance(error, pika_errors.IncompatibleProtocolError):
        # May be temporary: a proxy before a starting broker causes the same error.
        return ConnectionError("it does not speak AMQP 0-9-1; a TLS port needs amqps://")
    inner = getattr(error, "exception", None) or next(iter(error.args), None)
    if not str(error) and isinstance(inner, BaseException):
        return plain_error(inner)
    if _TIMED_OUT in str(getattr(error, "reply_text", "")):
        return ConnectionError(
            "a message was unacknowledged for longer than the broker's consumer_timeout; the broker delivers all "
            f"unacknowledged messages again, and those already processed are duplicates then ({error})"
        )
    return error


def _host_and_port(place: str, default: int) -> tuple[str, int]:
    parts = urlsplit(f"//{place}")
    return parts.hostname or "localhost", parts.port or default


def _tls(
    wanted: bool,  # noqa: FBT001
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
