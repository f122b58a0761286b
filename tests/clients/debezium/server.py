"""Debezium in Kafka Connect: sends the changes of tables of PostgreSQL, and can be killed."""

import subprocess
import time
from pathlib import Path

import psycopg

from tests.clients.java_kafka import run
from tests.support.services.maven import fetched
from tests.support.services.postgres import DATABASE, PASSWORD, USER

_POM = Path(__file__).with_name("pom.xml")
_TIMEOUT_S = 120.0
_WORKER = {
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    # A worker that is killed has written no offset, and sends everything again.
    "offset.flush.interval.ms": "600000",
    "listeners": "http://127.0.0.1:0",
    "plugin.discovery": "hybrid_warn",
    "topic.creation.enable": "false",
}
_CONNECTOR = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput",
    "publication.autocreate.mode": "filtered",
    "snapshot.mode": "no_data",
}
_PLACE = {
    "database.hostname": "127.0.0.1",
    "database.user": USER,
    "database.password": PASSWORD,
    "database.dbname": DATABASE,
}
_OUTBOX = {
    "transforms": "outbox",
    "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
    "transforms.outbox.route.topic.replacement": "${routedByValue}",
    "transforms.outbox.table.expand.json.payload": "true",
}


def changes_and_events(name):
    """Connectors for the tables `orders` and `outbox`.

    The changes of `orders` go to the topic `<name>_changes.public.orders`, the events of `outbox` to the topic that
    their column `aggregatetype` names.
    """
    return {
        f"{name}_changes": {"table.include.list": "public.orders"},
        f"{name}_outbox": {"table.include.list": "public.outbox", **_OUTBOX},
    }


class Debezium:
    """A worker of Kafka Connect.

    Args:
        folder: for settings and offsets.
        postgres: a server with `wal_level=logical`.
        bootstrap: of Kafka.
        connectors: settings of each connector, by the name of its replication slot. The place of the server, and the
            slot, are added; settings that are not given are those of a connector for new changes.
    """

    def __init__(self, folder, postgres, bootstrap, connectors):
        self._url = postgres.url.replace("+psycopg", "")
        self._slots = list(connectors)
        offsets = {"offset.storage.file.filename": str(folder / "offsets")}
        files = [_written(folder / "worker", {**_WORKER, **offsets, "bootstrap.servers": bootstrap})]
        for slot, settings in connectors.items():
            names = dict.fromkeys(("name", "slot.name", "publication.name", "topic.prefix"), slot)
            place = {**_PLACE, "database.port": str(postgres.port)}
            files.append(_written(folder / slot, {**_CONNECTOR, **settings, **place, **names}))
        java = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
        jars = f"{fetched(_POM, 'debezium', run)}/*"
        self._command = [*java, "-cp", jars, "org.apache.kafka.connect.cli.ConnectStandalone", *files]
        self._log = folder / "log"
        self._process = None

    def start(self):
        """Start the worker, and wait until it reads the changes."""
        with self._log.open("w") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + _TIMEOUT_S
        while self._active() < len(self._slots):
            assert self._process.poll() is None, self._log.read_text()[-2000:]
            assert time.monotonic() < deadline, self._log.read_text()[-2000:]
            time.sleep(0.1)

    def kill(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def sql(self, *statements):
        with psycopg.connect(self._url) as connection:
            for statement in statements:
                connection.execute(statement)
                connection.commit()

    def _active(self):
        query = "SELECT count(*) FROM pg_replication_slots WHERE active AND slot_name = ANY(%s)"
        with psycopg.connect(self._url) as connection:
            return connection.execute(query, [self._slots]).fetchone()[0]


def _written(path, settings):
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(path)
