"""What two processes of one consumer show together: the dashboard counts a waiting message and a pause once."""

import json
import secrets
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from idempotent import Message
from idempotent.checkers import SqlChecker
from idempotent.checkers.pauses import Pauses
from idempotent.migrations import upgrade
from tests.adapters.kafka.broker import Broker
from tests.adapters.rabbitmq.rabbit import Rabbit
from tests.observe.monitoring.serving import serving

DASHBOARD = Path(__file__).parents[3] / "docs" / "monitoring" / "dashboard.json"
WAITING, PARTITIONS, WAIT_S = 30, 2, 90.0
CONSUMERS = """
from idempotent import Registry

registry = Registry()

@registry.consumer({subject!r}, group="billing", checker="db")
def handle(message):
    pass
"""


def queue_of_rabbitmq(url: str, stack: ExitStack) -> tuple[str, str]:
    rabbit = Rabbit(url)
    stack.callback(rabbit.clean_up)
    queue = rabbit.declare_all(rabbit.name())
    rabbit.send(*(Message(queue, b"x", id=str(number)) for number in range(WAITING)))
    return url, queue


def topic_of_kafka(bootstrap: str, stack: ExitStack) -> tuple[str, str]:
    del stack
    broker, topic = Broker(bootstrap), f"orders-{secrets.token_hex(6)}"
    broker.make(topic, PARTITIONS)
    broker.make(f"{topic}.dlq")
    for number in range(WAITING):
        broker.send(topic, b"x", partition=number % PARTITIONS)
    broker.flush()
    return f"kafka://{bootstrap}", topic


def expression(title: str) -> str:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    (target,) = next(panel["targets"] for panel in panels if panel["title"] == title)
    return str(target["expr"]).replace("$consumer", ".*")


# Each process has the whole queue, or its own partition.
@pytest.mark.parametrize(
    ("fixture", "waits", "by_process"),
    [
        ("rabbitmq_url", queue_of_rabbitmq, [WAITING, WAITING]),
        ("kafka_bootstrap", topic_of_kafka, [WAITING // 2, WAITING // 2]),
    ],
)
@pytest.mark.slow
def test_two_processes_count_a_waiting_message_and_a_pause_once(
    request, tmp_path, private_prometheus, fixture, waits, by_process
):
    with ExitStack() as stack:
        broker, subject = waits(request.getfixturevalue(fixture), stack)
        (tmp_path / "shop.py").write_text(CONSUMERS.format(subject=subject))
        keys = f"sqlite:///{tmp_path / 'keys.db'}"
        engine = sa.create_engine(keys)
        stack.callback(engine.dispose)
        upgrade(engine)
        with closing(SqlChecker(engine)) as checker:
            Pauses(checker).pause(f"{subject}:billing", by="a test")  # nothing is received
        words = ("run", "shop:registry", "--broker", broker, "--checker", f"db={keys}")
        workers = [stack.enter_context(serving(tmp_path, *words)) for _ in range(2)]
        prometheus = private_prometheus(*workers)
        shown: list[float] = []
        until = time.monotonic() + WAIT_S
        while shown != by_process and time.monotonic() < until:
            time.sleep(0.5)
            shown = sorted(value for _, value in prometheus.query("idempotent_backlog_messages"))
        assert shown == by_process
        waiting = expression("Waiting in the broker")
        assert prometheus.query(waiting) == [({"consumer": f"{subject}:billing"}, WAITING)]
        assert prometheus.query(expression("Paused consumers")) == [({}, 1)]
