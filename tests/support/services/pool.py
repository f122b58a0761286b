"""The servers of one test session."""

import os
from collections.abc import Callable
from contextlib import ExitStack

from tests.support.services.docker import docker_answers, start_container
from tests.support.services.selection import Service, ServiceMissingError, Source, choose


class ServicePool:
    """Starts a server when it is first asked for, and stops all it started at the end."""

    def __init__(self, docker: Callable[[], bool] = docker_answers) -> None:
        self._docker = docker
        self._urls: dict[str, str] = {}
        self._stack = ExitStack()

    def url(self, service: Service) -> str:
        """Raises ServiceMissingError when there is no such server to be had."""
        if service.name not in self._urls:
            self._urls[service.name] = self._start(service)
        return self._urls[service.name]

    def share(self, services: list[Service]) -> None:
        """Starts what can be had and puts the URLs where the processes of pytest-xdist find them."""
        for service in services:
            try:
                url = self.url(service)
            except ServiceMissingError:
                # Each worker finds the same, and then knows which of its tests to skip.
                continue
            if service.variable not in os.environ:
                os.environ[service.variable] = url
                self._stack.callback(os.environ.pop, service.variable, None)

    def close(self) -> None:
        self._stack.close()

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
