"""The pika client, and the meaning of its errors."""

from __future__ import annotations

import logging
import re
import ssl
import threading
from collections.abc import Callable
from typing import Final

from idempotent.errors import MissingExtraError

try:
    import pika
except ImportError as error:
    raise MissingExtraError("pika", "rabbitmq") from error
import pika.data as pika_data
import pika.exceptions as pika_errors
import pika.frame as pika_frame
from pika.adapters.utils.connection_workflow import (
    AMQPConnectionWorkflowFailed,
    AMQPConnectorException,
    AMQPConnectorPhaseErrorBase,
)
from pika.compat import long as pika_long

__all__ = [
    "LOST",
    "is_missing",
    "pika",
    "pika_data",
    "pika_errors",
    "pika_frame",
    "pika_long",
    "plain_error",
    "remedy_for",
    "within",
]

# pika logs eight errors and a traceback for each failed attempt; the adapter logs one warning. Setting a level on
# this logger brings them back.
if logging.getLogger("pika").level == logging.NOTSET:
    logging.getLogger("pika").setLevel(logging.CRITICAL)

LOST: Final = (pika_errors.AMQPError, pika_errors.ChannelError, AMQPConnectorException, OSError)
"""What pika raises when a connection or one of its channels is lost, or when a frozen broker does not open one."""


def remedy_for(error: BaseException) -> str | None:
    """What to do about an error that another attempt does not solve; None if it may."""
    if _MAY_PASS.search(str(error)):
        return None
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
    if isinstance(error, pika_errors.ProbableAccessDeniedError) or code == _NOT_ALLOWED:
        return "check that the virtual host in the URL exists and that the user may use it"
    if code == _ACCESS_REFUSED:
        return "the user lacks a permission on this queue; with declare=False nothing needs to be configured"
    if is_missing(error):
        return "the queue does not exist: create it, or let declare=True do so"
    if code in (_PRECONDITION_FAILED, _NOT_IMPLEMENTED):
        return "the queue does not allow this option"
    return None


def is_missing(error: BaseException) -> bool:
    """Whether the broker says that a queue does not exist; one whose node is down exists."""
    text = str(getattr(error, "reply_text", ""))
    return getattr(error, "reply_code", None) == _NOT_FOUND and "down or inaccessible" not in text


_TIMED_OUT: Final = "timed out"
_PROBABLE: Final = (pika_errors.ProbableAuthenticationError, pika_errors.ProbableAccessDeniedError)
# The broker's own answer, in pika's words: access refused, not allowed.
_SAID_NO: Final = re.compile(r"ConnectionClosedByBroker: \((403|530)\)")
# What ends when another client leaves, in the broker's words, because the codes are those of refusals for good. Of the
# other codes, `remedy_for` names those that no attempt mends; 320, 405, 506 and 541 (a virtual host is down) may pass.
_MAY_PASS: Final = re.compile(
    r"limit \(\d+\) is reached"  # connections of a user, a virtual host or a node
    r"|limit in (vhost '.*'|cluster) \(\d+\) is reached"  # queues
    r"|number of channels opened .* has reached the maximum allowed"
    r"|limit cannot be queried"
    r"|in exclusive use"
)
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
        return ConnectionError(
            "it closed the connection before a word of AMQP 0-9-1: its broker is away behind a proxy, or it is a TLS "
            "port, which needs amqps://"
        )
    inner = _cause(error)
    if inner is not None:
        return plain_error(inner)
    if _TIMED_OUT in str(getattr(error, "reply_text", "")):
        return ConnectionError(
            "a message was unacknowledged for longer than the broker's consumer_timeout; the broker delivers all "
            f"unacknowledged messages again, and those already processed are duplicates then ({error})"
        )
    return error


def _cause(error: BaseException) -> BaseException | None:
    """The error that one of pika's own wraps, whose text is empty or names only classes; None if it says more."""
    if isinstance(error, AMQPConnectionWorkflowFailed):
        last: BaseException | None = error.exceptions[-1] if error.exceptions else None
        return last
    if isinstance(error, AMQPConnectorPhaseErrorBase):
        phase: BaseException | None = error.exception
        return phase
    inner = next(iter(error.args), None)
    wraps = isinstance(error, pika_errors.AMQPConnectionError) or not str(error)
    return inner if wraps and isinstance(inner, BaseException) else None


def within(close: Callable[[], None], seconds: float) -> None:
    """Call a function that closes, in a thread that is abandoned after these seconds: a frozen broker never answers.

    Raises:
        TimeoutError: it has not returned.
        Exception: what it raised.
    """
    errors: list[Exception] = []

    def run() -> None:
        try:
            close()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="idempotent-rabbitmq-close", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"the broker did not answer within {seconds:g} seconds")
    if errors:
        raise errors[0]
