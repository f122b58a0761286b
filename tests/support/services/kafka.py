"""Apache Kafka: one node that is broker and controller, from Maven Central."""

import base64
import socket
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.services.certificate import make_certificate
from tests.support.services.docker import Image
from tests.support.services.maven import fetched
from tests.support.services.process import PrivateServer, free_port

USER, PASSWORD = "consumer", "s3cret-of-the-tests"
_POM = Path(__file__).with_name("kafka-pom.xml")
# One node keeps one copy of everything, and few partitions of its own topics: they cost the start.
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    # How soon a transaction that took too long is noticed.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # How long a killed broker cannot come back.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    # How soon a member that is gone may be missed.
    "group.min.session.timeout.ms": "1000",
    # Tests want to see what happens without a topic.
    "auto.create.topics.enable": "false",
    # Compacted topics leave gaps between offsets, soon.
    "log.cleaner.backoff.ms": "200",
    # As shipped it is 128 MB, half of the heap: what is left fills in an hour of tests, and threads end without a word.
    "log.cleaner.dedupe.buffer.size": "8388608",
}


def ping(url: str) -> None:
    from confluent_kafka.admin import AdminClient

    # The client would wait a whole second for a port that refuses.
    host, _, port = url.rpartition(":")
    socket.create_connection((host, int(port)), 1).close()
    # Its complaints about a server that is not there yet would go to standard error.
    AdminClient({"bootstrap.servers": url, "log_level": 0}).list_topics(timeout=1)


class PrivateKafka(PrivateServer):
    """Takes more settings as `"--override", "name=value"`.

    With the word `secured` it listens at `tls_url` and `sasl_url` too: encrypted, with the certificate `ca_file`, and
    at the second one only for USER.
    """

    name = "Kafka"
    debian_package = "default-jre-headless maven"
    programs = ("java", "mvn")
    ping = staticmethod(ping)

    def __init__(self, *options: str) -> None:
        super().__init__(*(option for option in options if option != "secured"))
        self._is_secured = "secured" in options
        self._controller_port, self._tls_port, self._sasl_port = free_port(), free_port(), free_port()

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def tls_url(self) -> str:
        return f"127.0.0.1:{self._tls_port}"

    @property
    def sasl_url(self) -> str:
        return f"127.0.0.1:{self._sasl_port}"

    @property
    def ca_file(self) -> Path:
        return self.folder / "server.pem"

    def _prepare(self) -> None:
        listeners = {"PLAINTEXT": self.url}
        if self._is_secured:
            listeners |= {"SSL": self.tls_url, "SASL_SSL": self.sasl_url}
            make_certificate(self._run, self._key_store, self.ca_file, PASSWORD)
        advertised = ",".join(f"{name}://{place}" for name, place in listeners.items())
        settings = {
            **_SETTINGS,
            **(self._secured() if self._is_secured else {}),
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": f"{advertised},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": advertised,
            "log.dirs": str(self.folder / "data"),
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        tool = [*self._java(), "kafka.tools.StorageTool", "format"]
        self._run([*tool, f"--cluster-id={cluster}", "-c", str(self._properties)])

    def _secured(self) -> dict[str, str]:
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        return {
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL"
            ),
            "ssl.keystore.location": str(self._key_store),
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.password": PASSWORD,
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{login} user_{USER}="{PASSWORD}";',
        }

    @property
    def _key_store(self) -> Path:
        return self.folder / "keys.p12"

    def _command(self) -> list[str]:
        return [*self._java(), "kafka.Kafka", str(self._properties)]

    def _java(self) -> list[str]:
        return [
            "java",
            "-Xmx256m",
            # Starts faster, and does not take the tests' processors for its own good.
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            # Without this option a broker whose heap is full keeps running, and its clients get no answer.
            "-XX:+ExitOnOutOfMemoryError",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            f"{self._jars()}/*",
        ]

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    def _jars(self) -> Path:
        return jars(self._run)


def jars(run: Callable[[list[str]], Any]) -> Path:
    """The folder with the broker's programs and Java's own client; `run` runs a command that fetches them."""
    return fetched(_POM, "kafka", run)


_DOCKER_PORT = free_port()

IMAGE = Image(
    "apache/kafka:4.1.0",
    # Kafka tells its clients where it is, so the port must be the same inside and outside.
    port=_DOCKER_PORT,
    same_port=True,
    command="/etc/kafka/docker/run",
    environment={
        "KAFKA_LISTENERS": f"PLAINTEXT://:{_DOCKER_PORT},CONTROLLER://:9093",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://localhost:{_DOCKER_PORT}",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        **{f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in _SETTINGS.items()},
    },
    url="{host}:{port}",
)
