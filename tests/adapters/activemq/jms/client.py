"""A JMS client: the messages that ActiveMQ's own Java client sends and reads."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("JmsClient.java")
_JARS = "/usr/share/activemq/lib/*:/usr/share/java/slf4j-nop.jar"
_TIMEOUT_S = 120.0


def missing() -> str | None:
    """What is not installed here, or None when nothing is missing."""
    if shutil.which("javac") is None:
        return "javac not found; install the package default-jdk-headless"
    return None


class JmsClient:
    """The compiled client.

    Args:
        folder: for the compiled classes.
    """

    def __init__(self, folder: Path) -> None:
        self._path = f"{folder}:{_JARS}"
        _run(["javac", "-nowarn", "-cp", _JARS, "-d", str(folder), str(_SOURCE)])

    def send(self, url: str, destination: str, *kinds: str) -> None:
        """Send a message of each kind, with its name in the property `kind`."""
        self._java("send", url, destination, *kinds)

    def read(self, url: str, queue: str, count: int, sent_to: str) -> list[dict[str, str]]:
        """Take messages that were first sent to `sent_to`: their properties, `type` and `body`."""
        lines = self._java("read", url, queue, str(count), sent_to).splitlines()
        found = []
        for line in lines:
            type_, *fields = line.split("|")
            found.append({"type": type_} | dict(field.split("=", 1) for field in fields))
        return found

    def _java(self, *words: str) -> str:
        return _run(["java", "-XX:TieredStopAtLevel=1", "-cp", self._path, "JmsClient", *words])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout
