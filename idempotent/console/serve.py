"""Serves the console with uvicorn: the port, how long a request may take to come, and the end by a signal."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from idempotent.console.app import Console
from idempotent.console.guard import Access
from idempotent.errors import ConfigurationError
from idempotent.worker.process import on_stop_signal

_REQUEST_S: Final = 30.0


def listening(access: Access) -> socket.socket:
    """A socket at the address of the console. Raises ConfigurationError: another program has it, or it is none."""
    family = socket.AF_INET6 if ":" in access.host else socket.AF_INET
    try:
        return socket.create_server((access.host, access.port), family=family)
    except OSError as error:
        raise ConfigurationError(
            f"the console cannot listen on {access.host}, port {access.port}: {error.strerror}. Another program may "
            "have it, also another console: --port takes another one"
        ) from error


def serve(console: Console, at: socket.socket) -> None:
    """Answer requests until SIGTERM or Ctrl-C.

    Args:
        console: the pages.
        at: where requests come, of `listening`; closed afterwards.
    """
    # When uvicorn has ended, it sends itself the signal again.
    with on_stop_signal(lambda: None):
        server_of(console).run([at])
        console.close()


def server_of(console: Console) -> uvicorn.Server:
    """A server for the pages."""
    config = uvicorn.Config(
        console.app,
        http=_Connection,
        # Addresses name keys, and that of the login the token.
        access_log=False,
        log_config=None,
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=5,
    )
    return uvicorn.Server(config)


class _Connection(H11Protocol):
    """A connection that ends if a request has not come in full in time: uvicorn waits for the rest without a limit."""

    _until: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._until = self.loop.call_later(_REQUEST_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._forget()
        elif self._until is None:
            self._until = self.loop.call_later(_REQUEST_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _forget(self) -> None:
        if self._until is not None:
            self._until.cancel()
            self._until = None
