"""Servers in containers, through testcontainers."""

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from shutil import which

from tests.support.services.waiting import wait_until_it_answers

_ANSWER_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Image:
    """What to run; `url` has the places `{host}` and `{port}`."""

    name: str
    port: int = field(kw_only=True)
    url: str = field(kw_only=True)
    command: str = field(kw_only=True)
    environment: Mapping[str, str] = field(kw_only=True, default_factory=dict)
    same_port: bool = field(kw_only=True, default=False)


def docker_answers() -> bool:
    """Asks the command line client: it knows about contexts, and fails without noise."""
    docker = which("docker")
    if docker is None or find_spec("testcontainers") is None:
        return False
    try:
        asked = subprocess.run([docker, "info"], check=False, capture_output=True, timeout=_ANSWER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0


def start_container(image: Image, ping: Callable[[str], None]) -> tuple[str, Callable[[], None]]:
    """Returns the URL of the running server and what stops it."""
    from testcontainers.core.container import DockerContainer

    container = DockerContainer(image.name).with_exposed_ports(image.port).with_command(image.command)
    if image.same_port:
        container.with_bind_ports(image.port, image.port)
    for name, value in image.environment.items():
        container.with_env(name, value)
    container.start()
    try:
        url = image.url.format(
            host=container.get_container_host_ip(), port=container.get_exposed_port(image.port)
        )
        wait_until_it_answers(lambda: ping(url), lambda: None)
    except BaseException:
        container.stop()
        raise
    return url, container.stop
