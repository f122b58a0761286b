"""HealthServer: answers probes and Prometheus over HTTP."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self
from urllib.parse import urlsplit
from weakref import WeakSet

from idempotent.errors import ConfigurationError, described
from idempotent.forks import in_child
from idempotent.logs import EventLog
from idempotent.validation import flag, seconds_or_none, whole
from idempotent.worker.health import Health

log = EventLog(__name__)

LOOPBACK: Final = "127.0.0.1"
_LAST_PORT: Final = 65535
# A client that sends nothing must not keep its thread for ever.
_SILENCE_S: Final = 10.0
_JSON: Final = "application/json"
_ASKED: Final = {"/livez": "live", "/readyz": "ready", "/startedz": "started"}

Page = Callable[[str], tuple[int, bytes, str]]
"""Answers a request with a status, a body and its type; it is given the header `Accept`."""


class HealthServer:
    """A context manager: inside, a thread serves `/livez`, `/readyz`, `/startedz` and `/metrics` over HTTP.

    The first three answer 200 or 503, with JSON that says for each worker and relay how it is, and which messages its
    handlers have in hand. Whoever reaches the port reads their keys.

        with HealthServer([worker.health], port=9000):
            worker.run()

    Args:
        served: the `health` of the workers and relays of this process. The worst of them is the answer.
        port: where to listen; 0: the system chooses, see `port`.
        address: of this machine; the default is reached from this machine alone, "0.0.0.0" or "::" from everywhere.
        metrics: serve `/metrics` too: Prometheus's default registry, to which an `IdempotentCollector` is added unless
            it has one.
        hang_after_s: `/livez` fails while a handler has run for so long; None: however long it runs. A probe that
            restarts the process ends all handlers, so choose a time that none of them takes.

    Attributes:
        address: where it listens.
        port: where it listens, the one that the system chose too.

    Raises:
        ConfigurationError: an option is out of its range, or the port is taken.
        MissingExtraError: prometheus-client is not installed, with `metrics`.
    """

    def __init__(
        self,
        served: Iterable[Health],
        *,
        port: int,
        address: str = LOOPBACK,
        metrics: bool = True,
        hang_after_s: float | None = None,
    ) -> None:
        """Take the port; answer nothing yet."""
        self._served = _checked(served)
        self._hang_after_s = seconds_or_none(hang_after_s, "hang_after_s")
        port = whole(port, "port", least=0, most=_LAST_PORT)
        pages: dict[str, Page] = {path: self._asking(what) for path, what in _ASKED.items()}
        if flag(metrics, "metrics"):
            pages["/metrics"] = _metrics_page()
        self._server = _listening(address, port, pages)
        self.address: Final = address
        self.port: Final[int] = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="idempotent-health", daemon=True
        )

    @property
    def url(self) -> str:
        """Where it is reached, without a path."""
        return f"http://{f'[{self.address}]' if ':' in self.address else self.address}:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        log.info("health_served", extra={"url": self.url})
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _asking(self, what: str) -> Page:
        def page(_accept: str) -> tuple[int, bytes, str]:
            reports = [each.report(self._hang_after_s) for each in self._served]
            good = all(report[what] for report in reports)
            body = json.dumps({"ok": good, "served": reports}).encode()
            return (HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE), body, _JSON

        return page


def _checked(served: object) -> tuple[Health, ...]:
    found = tuple(served) if isinstance(served, Iterable) else ()
    if not found or not all(isinstance(each, Health) for each in found):
        raise ConfigurationError(f"served takes a list of worker.health and relay.health, not {served!r}")
    return found


def _metrics_page() -> Page:
    from idempotent.observe.prometheus import exporting, rendered

    registry = exporting()

    def page(accept: str) -> tuple[int, bytes, str]:
        return (HTTPStatus.OK, *rendered(registry, accept))

    return page


def _listening(address: str, port: int, pages: dict[str, Page]) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        timeout = _SILENCE_S

        def do_GET(self) -> None:
            self.wfile.write(self._head())

        def do_HEAD(self) -> None:
            self._head()

        def _head(self) -> bytes:
            """Answer without the body, which is returned."""
            page = pages.get(urlsplit(self.path).path, _not_found)
            status, body, kind = page(self.headers.get("Accept", ""))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            return body

        def log_message(self, *_: Any) -> None:
            """A probe each second is no news."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            error = sys.exc_info()[1]
            if error is not None and not isinstance(error, OSError):  # a client that goes away is no news
                log.error("health_request_failed", extra={"error": described(error)}, exc_info=error)

    def _not_found(_accept: str) -> tuple[int, bytes, str]:
        return HTTPStatus.NOT_FOUND, json.dumps({"pages": sorted(pages)}).encode(), _JSON

    try:
        server = Server((address, port), Handler)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on port {port} of {address} ({error.strerror or error}): choose another port, or 0 for any "
            "that is free"
        ) from error
    _opened.add(server)
    return server


# The child of a fork must not keep the port.
_opened: Final[WeakSet[ThreadingHTTPServer]] = WeakSet()


def _close_in_child() -> None:
    for server in list(_opened):
        server.socket.close()


in_child(_close_in_child)
