"""Java's own Kafka client, in a program that is compiled when a test first needs it."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.services.kafka import jars

_SOURCE = Path(__file__).with_name("JavaKafka.java")
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Record:
    """What Java read of a record; a header that occurs twice has the value of the second."""

    partition: int
    key: str
    value: str
    headers: dict[str, str]


def missing():
    """What is not installed here, or None when nothing is missing."""
    absent = [program for program in ("javac", "mvn") if shutil.which(program) is None]
    return f"{absent[0]} not found; install default-jdk-headless and maven" if absent else None


class JavaKafka:
    """The compiled client.

    Args:
        folder: for the compiled classes.
    """

    def __init__(self, folder):
        libraries = f"{jars(run)}/*"
        self._path = f"{folder}:{libraries}"
        run(["javac", "-nowarn", "-cp", libraries, "-d", str(folder), str(_SOURCE)])

    def send(self, broker, topic, *values):
        """Send values by an idempotent producer; the key is what precedes the last dash."""
        self._java("send", broker.bootstrap, topic, *values)

    def transact(self, broker, topic, *values):
        """Send each value in a transaction, which is aborted if the value begins with `aborted`."""
        self._java("transact", broker.bootstrap, topic, *values)

    def read(self, broker, topic, count):
        """The first records of a topic."""
        return [
            _record(line) for line in self._java("read", broker.bootstrap, topic, str(count)).splitlines()
        ]

    def _java(self, *words):
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        java = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dfile.encoding=UTF-8", quiet]
        return run([*java, "-cp", self._path, "JavaKafka", *words])


def run(command):
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _record(line):
    partition, key, value, *headers = line.split("|")
    return Record(int(partition), key, value, dict(header.split("=", 1) for header in headers))
