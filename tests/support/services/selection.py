"""Where a server comes from: a URL in the environment, Docker, or a private process; first hit wins.

Never a server that merely happens to listen on the default port: it may be somebody's data.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from tests.support.services.docker import Image
from tests.support.services.process import PrivateServer


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    variable: str
    image: Image
    private: type[PrivateServer]


class Source(Enum):
    ENVIRONMENT = "environment"
    DOCKER = "docker"
    PRIVATE = "private"


class ServiceMissingError(Exception):
    """No server can be had; the text is one line that says what to install."""


def choose(service: Service, environ: Mapping[str, str], docker_answers: Callable[[], bool]) -> Source:
    """Raises ServiceMissingError when there is none of the three."""
    if environ.get(service.variable):
        return Source.ENVIRONMENT
    if docker_answers():
        return Source.DOCKER
    missing = service.private.missing()
    if missing is None:
        return Source.PRIVATE
    raise ServiceMissingError(f"no {service.name}: {missing}, or set {service.variable}")


def is_required(environ: Mapping[str, str], *, option: bool) -> bool:
    """Whether a missing server is a failure instead of a skip."""
    return option or environ.get("CI", "").lower() in ("true", "1")
