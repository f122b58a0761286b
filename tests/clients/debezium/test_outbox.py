"""Debezium, configured as docs/outbox-debezium.md says, in the place of a relay."""

import os
import secrets

import pytest
import sqlalchemy as sa

from idempotent import Message
from idempotent.adapters.copies import KEY_HEADER
from idempotent.migrations import upgrade
from idempotent.outbox import Outbox
from idempotent.testing.adapter_contract import until
from tests.adapters.kafka.broker import Broker
from tests.clients.debezium.page import connectors
from tests.clients.debezium.server import Debezium
from tests.clients.java_kafka import missing
from tests.support.services import PrivatePostgres, is_required


@pytest.mark.slow
def test_debezium_publishes_what_an_outbox_has_sent(pytestconfig, kafka_bootstrap, spare, tmp_path):
    absent = missing()
    if absent is not None:
        required = is_required(os.environ, option=pytestconfig.getoption("require_services"))
        (pytest.fail if required else pytest.skip)(f"no Debezium: {absent}")
    name, broker = f"db_{secrets.token_hex(6)}", Broker(kafka_bootstrap)
    topic = f"{name}.invoices"
    broker.make(topic)
    postgres = spare(PrivatePostgres, "-c", "wal_level=logical")
    upgrade(postgres.url)
    engine = sa.create_engine(postgres.url)
    outbox = Outbox(engine)

    def send(message, **options):
        with engine.begin() as connection:
            return outbox.send(connection, message, **options)

    debezium = Debezium(tmp_path, postgres, kafka_bootstrap, {name: connectors()[0]})
    ids = [send(Message(topic, b'{"cents": 100}'), order_key="customer-7")]  # waits: the snapshot reads it
    try:
        debezium.start()
        ids.append(
            send(Message(topic, b"\x00\xff", id="own-id", headers={"kind": "paid"}), order_key="customer-8")
        )
        ids.append(send(Message(topic, None), order_key="customer-7"))
        ids.append(send(Message(topic, b"")))
        debezium.sql("DELETE FROM deduplicate_tbl_outbox")
        ids.append(send(Message(topic, b"last")))
        until(lambda: len(broker.read_raw(topic)) >= len(ids), "the messages")
    finally:
        debezium.kill()
        outbox.close()
        engine.dispose()
    records = broker.read_raw(topic)
    assert [record.value() for record in records] == [b'{"cents": 100}', b"\x00\xff", None, b"", b"last"]
    assert [record.key() for record in records] == [b"customer-7", b"customer-8", b"customer-7", None, None]
    headers = [dict(record.headers()) for record in records]
    assert headers == [{"id": each.encode(), KEY_HEADER: each.encode()} for each in ids]
