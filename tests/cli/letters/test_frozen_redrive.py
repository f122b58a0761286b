"""`idempotent redrive` over a database that stops answering while it works."""

import secrets

import pytest
import sqlalchemy as sa

from idempotent import Message
from idempotent.adapters.memory import named_broker
from idempotent.cli import stores
from idempotent.migrations import upgrade
from tests.support.services import PrivateMariaDb, PrivatePostgres

CONSUMERS = """
from idempotent import Registry

registry = Registry()
on_order = registry.consumer("orders", group="billing", checker="db")(lambda message: None)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PrivateMariaDb, PrivatePostgres])
def test_it_ends_and_its_letters_stay(cli, project, spare, monkeypatch, kind):
    monkeypatch.setattr(stores, "ANSWER_TIMEOUT_S", 2)
    monkeypatch.setattr(stores, "_CONNECT_TIMEOUT_S", 2)
    module = f"shop_{secrets.token_hex(4)}"
    (project / f"{module}.py").write_text(CONSUMERS)
    server = spare(kind)
    upgrade(server.url)
    broker = named_broker(module)
    for number in range(2):
        broker.publish(Message("orders.dead", id=str(number)))

    def freeze(*_):
        server.pause()

    sa.event.listen(sa.Pool, "checkout", freeze)
    try:
        answer = cli(
            *("redrive", f"{module}:on_order", "--broker", f"memory://{module}"),
            *("--checker", f"db={server.url}"),
        )
    finally:
        sa.event.remove(sa.Pool, "checkout", freeze)
        server.resume()
    assert answer.code == 4, answer.err
    assert broker.backlog("orders.dead") == 2
