"""The servers of one test session."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Client, Listener
from types import MappingProxyType

from tests.support.services.docker import docker_answers, start_container
from tests.support.services.selection import Service, Source, choose

_HOST = "127.0.0.1"


class ServicePool:
    """Start a server when a test first needs it, and stop all servers at the end.

    Args:
        docker: whether Docker answers.
        lent: the ports of another process's `Lender`, whose servers are used and not stopped.
    """

    def __init__(
        self, docker: Callable[[], bool] = docker_answers, lent: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        self._docker = docker
        self._lent = lent
        self._urls: dict[str, str] = {}
        self._stack = ExitStack()

    def url(self, service: Service) -> str:
        """The URL of a running server.

        Raises:
            ServiceMissingError: this machine has no such server.
        """
        if service.name not in self._urls:
            lent = service.name in self._lent
            self._urls[service.name] = self._borrow(service) if lent else self._start(service)
        return self._urls[service.name]

    def close(self) -> None:
        self._stack.close()

    def _borrow(self, service: Service) -> str:
        with Client((_HOST, self._lent[service.name])) as connection:
            answer = connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    def _start(self, service: Service) -> str:
        match choose(service, os.environ, self._docker):
            case Source.ENVIRONMENT:
                return os.environ[service.variable]
            case Source.DOCKER:
                url, stop = start_container(service.image, service.private.ping)
                self._stack.callback(stop)
                return url
            case Source.PRIVATE:
                server = service.private()
                self._stack.callback(server.close)
                server.start()
                return server.url


class Lender:
    """Answers the processes of pytest-xdist, so that they share one server of each kind.

    Each service has a thread of its own that starts it: two servers can start at a time, and the kernel ends a server
    together with the thread that started it.
    """

    def __init__(self, pool: ServicePool, services: Sequence[Service]) -> None:
        self._pool = pool
        self._is_closed = False
        self.ports: dict[str, int] = {}
        """The port of each service, for a `ServicePool`."""
        for service in services:
            listener = Listener((_HOST, 0))
            self.ports[service.name] = listener.address[1]
            threading.Thread(target=self._answer, args=(service, listener), daemon=True).start()

    def close(self) -> None:
        """Stop answering. It does not wait for a server that is starting."""
        self._is_closed = True
        for port in self.ports.values():
            Client((_HOST, port)).close()

    def _answer(self, service: Service, listener: Listener) -> None:
        with listener:
            while True:
                with listener.accept() as connection, suppress(ConnectionError):
                    if self._is_closed:  # the connection of `close`, for which no server is to start
                        return
                    connection.send(self._url_or_error(service))

    def _url_or_error(self, service: Service) -> str | Exception:
        try:
            return self._pool.url(service)
        except Exception as error:
            return error
