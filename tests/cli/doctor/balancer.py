"""A TCP balancer: each new connection goes to the next server."""

import itertools
import socket
import threading
from contextlib import ExitStack, suppress


class Balancer:
    """Listens on loopback, and forwards each connection to the next of these ports."""

    def __init__(self, *ports):
        self._targets = itertools.cycle(ports)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets = ExitStack()
        self._threads = []
        self._start(self._accept)

    def close(self):
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(30)
        self._sockets.close()

    def _start(self, target, *arguments):
        self._threads.append(threading.Thread(target=target, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", next(self._targets)))
                for source, target in ((client, server), (server, client)):
                    self._sockets.enter_context(source)
                    self._start(_forward, source, target)


def _forward(source, target):
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
