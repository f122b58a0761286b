"""Each query of the dashboard, and of the alerts, against a Prometheus that scrapes a worker and a relay in trouble."""

import json
import math
import re
import secrets
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from idempotent import Message
from idempotent.adapters.rabbitmq import RabbitMqAdapter
from idempotent.outbox import Outbox, outbox_tables
from tests.observe.monitoring.serving import serving
from tests.support.stores import open_store

MONITORING = Path(__file__).parents[3] / "docs" / "monitoring"
WAIT_S = 90.0
CONSUMERS = """
import time
from idempotent import Registry

registry = Registry()

@registry.consumer({queue!r}, group="billing", checker="db", max_attempts=1)
def handle(message):
    if message.body == b"poison":
        raise ValueError("no such customer")
    if message.body == b"hangs":
        time.sleep(600)
"""
# What a worker and a relay in these troubles show; all other queries have a value, too.
TROUBLE = {
    "Processes that are not ready": lambda value: value == 0,
    "Died in the last hour": lambda value: value > 0,
    "Dead keys in the store": lambda value: value == 2,
    "Longest running handler": lambda value: value > 1,
    "Held in outboxes": lambda value: value >= 1,
}
EXPRESSION = re.compile(r"(?m)^ +expr: (?:>-\n)?((?:.|\n)+?)(?=^ +(?:for|labels):)")
# Empty in these troubles: no lease is lost, and no more waits than a few messages.
QUIET = {"Leases lost and other events"}


@pytest.mark.slow
def test_the_queries_show_the_troubles(request, tmp_path, rabbitmq_url, private_prometheus):
    queue = f"orders-{secrets.token_hex(6)}"
    (tmp_path / "shop.py").write_text(CONSUMERS.format(queue=queue))
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    panels = [panel for panel in dashboard["panels"] if "targets" in panel]
    for store in open_store("postgres", request):
        checker = f"{store.url}?table={store.table}"
        with ExitStack() as stack:
            metadata = sa.MetaData()
            outbox_tables(metadata, store.table)
            metadata.create_all(store.admin_engine)
            stack.callback(metadata.drop_all, store.admin_engine)
            outbox = stack.enter_context(closing(Outbox(store.admin_engine, table=store.table)))
            with store.admin_engine.begin() as connection:
                outbox.send(connection, Message("amq.forbidden", b"x", id="1"))
            run = ("run", "shop:registry", "--broker", rabbitmq_url, "--checker", f"db={checker}")
            worker = stack.enter_context(serving(tmp_path, *run, "--concurrency", "2"))
            relay = ("relay", "--outbox", checker, "--broker", rabbitmq_url)
            prometheus = private_prometheus(worker, stack.enter_context(serving(tmp_path, *relay)))
            until = time.monotonic() + WAIT_S
            while not prometheus.query("idempotent_outcomes_total") and time.monotonic() < until:
                time.sleep(0.2)  # `increase` sees what comes after the first scrape
            with closing(RabbitMqAdapter(rabbitmq_url)) as adapter:
                adapter.open([])
                bodies = [b"fine"] * 20 + [b"poison"] * 2 + [b"hangs"]
                adapter.publish_many([Message(queue, body, id=str(at)) for at, body in enumerate(bodies)])
            found = {}
            while time.monotonic() < until and not shows(found):
                time.sleep(1)
                found = {panel["title"]: values(prometheus, panel) for panel in panels}
            assert shows(found), found
            assert {name for name, numbers in found.items() if not numbers} <= QUIET
            for expression in EXPRESSION.findall((MONITORING / "alerts.yml").read_text()):
                prometheus.query(expression)


def shows(found):
    return bool(found) and all(check(max(found[name], default=-1.0)) for name, check in TROUBLE.items())


def values(prometheus, panel):
    numbers = []
    for target in panel["targets"]:
        expression = target["expr"].replace("$__rate_interval", "1m").replace("$consumer", ".*")
        numbers += [value for _, value in prometheus.query(expression) if not math.isnan(value)]
    return numbers
