"""Servers that the tests of one process stop, kill and pause in turn."""

from contextlib import ExitStack
from typing import TypeVar

from tests.support.services.process import PrivateServer

ServerT = TypeVar("ServerT", bound=PrivateServer)


class SpareServers:
    """Keeps each server for the next test: a new one for each test would take seconds.

    A test gets it running, with the data of the tests before, so each test makes queues and topics of its own.
    """

    def __init__(self) -> None:
        self._servers: dict[tuple[type[PrivateServer], frozenset[str]], PrivateServer] = {}
        self._stack = ExitStack()

    def get(self, kind: type[ServerT], *options: str) -> ServerT:
        """A running server of this kind with these options."""
        key = (kind, frozenset(options))
        server = self._servers.get(key)
        if not isinstance(server, kind):
            server = self._servers[key] = kind(*options)
            self._stack.callback(server.close)
        server.recover()
        return server

    def close(self) -> None:
        self._stack.close()
