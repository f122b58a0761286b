"""Serves the console's pages with uvicorn."""

from __future__ import annotations

import uvicorn

from idempotent.console.app import Console
from idempotent.console.guard import Access
from idempotent.worker.process import on_stop_signal


def serve(console: Console, access: Access) -> None:
    """Answer requests until SIGTERM or Ctrl-C.

    Args:
        console: the pages.
        access: where to listen.
    """
    # When uvicorn has ended, it sends itself the signal again.
    with on_stop_signal(lambda: None):
        uvicorn.Server(server_options(console, access)).run()
        console.close()


def server_options(console: Console, access: Access) -> uvicorn.Config:
    """What uvicorn is told."""
    return uvicorn.Config(
        console.app,
        host=access.host,
        port=access.port,
        # Addresses name keys, and that of the login the token.
        access_log=False,
        log_config=None,
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=5,
    )
