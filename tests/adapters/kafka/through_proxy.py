"""A proxy in front of the tests' broker."""

from contextlib import contextmanager

from idempotent.testing.proxy import Proxy
from tests.torture.kafka_addresses import KafkaAddresses


@contextmanager
def through_proxy(broker, change=bytes):
    """A proxy whose clients stay behind it, and its `host:port`; `change` changes the broker's bytes for them."""
    host, _, port = broker.bootstrap.rpartition(":")
    address = host, int(port)

    def translate():
        to_proxy = KafkaAddresses(address, ("127.0.0.1", proxy.port))
        return lambda packet: change(to_proxy(packet))

    proxy = Proxy(*address, translate=translate)
    try:
        yield proxy, f"127.0.0.1:{proxy.port}"
    finally:
        proxy.close()


@contextmanager
def garbled(broker):
    """The `host:port` of a broker that sends the header `colour` with a name that is not UTF-8."""
    with through_proxy(broker, lambda packet: packet.replace(b"colour", b"\xff\xfelour")) as (_, bootstrap):
        yield bootstrap
