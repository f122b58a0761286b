"""A server of the shop in a process of its own: its port is the first line that it writes.

`python -m tests.adapters.django_plugin.serve URL [wsgi|asgi]`. With `DIES=answer` it dies when the first request of
order `a` has committed, before its answer is sent.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from idempotent.adapters.django import authorization
from tests.adapters.django_plugin.project import configure, database_of


class Threads(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 200


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class Dies:
    """Kills the process between the COMMIT and the answer. Outside of the middleware that it tests."""

    sync_capable, async_capable = True, False

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        response = self.get_response(request)
        if os.environ.get("DIES") == "answer" and request.path.endswith("/a"):
            os.kill(os.getpid(), signal.SIGKILL)
        return response


def serve(url: str, kind: str = "wsgi") -> None:
    """Serve until killed."""
    configure(
        {"default": database_of(url, CONN_MAX_AGE=None)},
        IDEMPOTENCY={
            "scope": authorization,
            "group": "tests",
            "wait_s": float(os.environ.get("WAIT_S", "0")),
        },
    )
    from django.conf import settings

    settings.MIDDLEWARE = [f"{__name__}.Dies", *settings.MIDDLEWARE]
    if kind == "wsgi":
        from django.core.wsgi import get_wsgi_application

        server = Threads(("127.0.0.1", 0), Quiet)
        server.set_app(get_wsgi_application())
        os.write(1, b"%d\n" % server.server_port)
        server.serve_forever()
    else:
        import uvicorn
        from django.core.asgi import get_asgi_application

        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            bound.listen(200)
            os.write(1, b"%d\n" % bound.getsockname()[1])
            config = uvicorn.Config(get_asgi_application(), log_level="critical", lifespan="off")
            asyncio.run(uvicorn.Server(config).serve([bound]))


if __name__ == "__main__":
    serve(*sys.argv[1:])
