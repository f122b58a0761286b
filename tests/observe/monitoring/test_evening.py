"""An operator's evening: what docs/operators-evening.md says to type, typed at a worker and a relay in six troubles.

A minute of the alerts is a second here, and the commands and their answers are those of the page.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pika
import pytest
import sqlalchemy as sa

from idempotent import Message
from idempotent.adapters.rabbitmq import RabbitMqAdapter
from idempotent.migrations import upgrade
from idempotent.outbox import Outbox
from tests.support.services import PrivatePostgres, PrivatePrometheus, PrivateRabbitMq
from tests.support.services.process import free_port

log = logging.getLogger(__name__)
DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "operators-evening.md"
ALERTS = DOCS / "monitoring" / "alerts.yml"
# For a machine with much else to do: a command takes a second on an idle one.
WAIT_S = 90.0
LEASE_S = 5
CONSUMERS = """
import os
from pathlib import Path
from urllib.request import urlopen

from idempotent import consumer


@consumer("orders.paid", group="billing", checker="db", max_attempts=1)
def on_paid(message):
    customer = message.json()["customer"]
    if customer not in Path("customers.txt").read_text().split():
        raise LookupError(f"no customer {customer!r}")
    urlopen(f"{os.environ['BANK']}/{message.id}").close()


@consumer("mails", group="shop", checker="db")
def on_mail(message):
    pass
"""
RUN = (
    "idempotent run shop.consumers --broker env:IDEMPOTENT_BROKER --checker db=env:IDEMPOTENT_URL"
    " --concurrency 3 --drain-timeout 2 --metrics-port"
)
RELAY = "idempotent relay --outbox env:IDEMPOTENT_URL --broker env:IDEMPOTENT_BROKER --metrics-port"
# Durations that stand in the expressions of rules as numbers of seconds.
EXPRESSIONS = {
    "idempotent_longest_running_seconds) > 600": "idempotent_longest_running_seconds) > 10",
    "idempotent_outbox_oldest_seconds) > 300": "idempotent_outbox_oldest_seconds) > 5",
    "> 1800 * sum": "> 30 * sum",
}
# In the answers of the page: what differs from evening to evening.
VARIES = {
    r"\.\.\.": ".*",
    r"\d+ (?:s|min|h|d) ago": r"\d+ (?:s|min|h|d) ago",
}
ORDER = b'{"customer": "8811"}'


def hurried(rules: str) -> str:
    """The rules, with a second in the place of each minute."""
    for slow, quick in EXPRESSIONS.items():
        assert slow in rules
        rules = rules.replace(slow, quick)
    return re.sub(r"\b(\d+)m\b", r"\1s", rules)


@dataclass(frozen=True)
class Typed:
    """A command of the page, and what it answers there."""

    command: str
    answer: str

    def answers(self, said: str) -> bool:
        """Whether something was said that the page shows: blanks do not count, and a line `...` is any lines."""
        shown = "\n".join(" ".join(line.split()) for line in self.answer.splitlines()) + "\n"
        heard = "".join(" ".join(line.split()) + "\n" for line in said.splitlines())
        parts = re.split(r"(?m)(^\.\.\.\n|" + "|".join(VARIES) + ")", shown)
        return re.fullmatch("".join(map(_pattern, parts)), heard) is not None


def _pattern(part: str) -> str:
    if part == "...\n":
        return r"(?:.*\n)*?"
    return next((to for shown, to in VARIES.items() if re.fullmatch(shown, part)), re.escape(part))


def typed_in(text: str) -> list[Typed]:
    """The commands of a part of the page, with their answers."""
    blocks = re.findall(r"(?ms)^```console\n(.*?)^```$", text)
    pairs = re.findall(r"(?m)^\$ (.+)\n((?:(?!\$ ).*\n)*)", "".join(blocks))
    return [Typed(command, answer) for command, answer in pairs]


@dataclass(frozen=True)
class Section:
    """What the page says of one trouble."""

    title: str
    text: str

    @property
    def alerts(self) -> set[str]:
        return set(re.findall(r"Idempotent\w+", self._part("Alert", "Look")))

    @property
    def look(self) -> list[Typed]:
        return typed_in(self._part("Look", "Repair"))

    @property
    def repair(self) -> list[Typed]:
        return typed_in(self._part("Repair", "Over"))

    @property
    def over(self) -> list[Typed]:
        return typed_in(self.text.partition("**Over.**")[2])

    def _part(self, begin: str, end: str) -> str:
        return self.text.partition(f"**{begin}.**")[2].partition(f"**{end}.**")[0]


SECTIONS = {
    title: Section(title, text)
    for title, text in re.findall(r"(?ms)^## (.+?)\n(.+?)(?=^## |\Z)", PAGE.read_text())
}


class Bank(ThreadingHTTPServer):
    """Books each payment that is asked for, and says so; but of some it books nothing, and some it does not answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Booking)
        self.deaf_to: set[str] = set()
        self.mute_to: set[str] = set()
        self.booked: list[str] = []
        self.closed = threading.Event()


class Booking(BaseHTTPRequestHandler):
    server: Bank

    def do_GET(self) -> None:
        payment, bank = self.path.strip("/"), self.server
        if payment not in bank.deaf_to:
            bank.booked.append(payment)
        if payment in bank.deaf_to | bank.mute_to:
            bank.closed.wait()  # no answer as long as the bank is there
            return
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def bank_in(stack: ExitStack) -> Bank:
    bank = stack.enter_context(Bank())
    thread = threading.Thread(target=bank.serve_forever)
    thread.start()
    stack.callback(thread.join)
    stack.callback(bank.shutdown)
    stack.callback(bank.closed.set)
    return bank


@dataclass
class Shop:
    """The services of the page, and the people around them."""

    folder: Path
    postgres: PrivatePostgres
    rabbitmq: PrivateRabbitMq
    bank: Bank
    stack: ExitStack
    ports: tuple[int, int] = field(default_factory=lambda: (free_port(), free_port()))
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        (self.folder / "shop").mkdir()
        (self.folder / "shop" / "consumers.py").write_text(CONSUMERS)
        (self.folder / "customers.txt").write_text("8811\n")
        self.engine = sa.create_engine(self.postgres.url)
        self.stack.callback(self.engine.dispose)
        upgrade(self.engine)
        # What the page lets the operator export, and what the services have.
        self.exported = {
            "IDEMPOTENT_URL": f"{self.postgres.url}?lease_s={LEASE_S}",
            "IDEMPOTENT_BROKER": self.rabbitmq.url,
            "WORKER": f"http://127.0.0.1:{self.ports[0]}",
        }
        self.environ = {
            **os.environ,
            **self.exported,
            "BANK": f"http://127.0.0.1:{self.bank.server_address[1]}",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTHONUNBUFFERED": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def start(self, name: str, command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                shlex.split(command), cwd=self.folder, env=self.environ, stdout=log, stderr=log
            )
        self.processes[name] = process
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)

    def start_worker(self) -> None:
        self.start("worker", f"{RUN} {self.ports[0]}")
        self.wait(self.is_ready, "a worker that is ready")

    def is_ready(self) -> bool:
        try:
            urlopen(f"{self.exported['WORKER']}/readyz").close()
        except (URLError, OSError):
            return False
        return True

    def says(self, text: str) -> bool:
        """Whether the worker's log has it."""
        return text in (self.folder / "worker.log").read_text()

    def publish(self, subject: str, bodies: dict[str, bytes]) -> None:
        """Messages with these ids."""
        with closing(RabbitMqAdapter(self.rabbitmq.url, declare=False)) as adapter:
            adapter.open([])
            adapter.publish_many([Message(subject, body, id=name) for name, body in bodies.items()])

    def ask(self, question: Callable[[Any], Any]) -> Any:
        """What RabbitMQ answers."""
        with closing(pika.BlockingConnection(pika.URLParameters(self.rabbitmq.url))) as connection:
            return question(connection.channel())

    def waiting(self, queue: str) -> int:
        """How many messages wait there."""
        return self.ask(lambda channel: channel.queue_declare(queue, passive=True)).method.message_count

    def wait(self, check: Callable[[], object], what: str) -> float:
        """Until it is so; the seconds that it took."""
        began = time.monotonic()
        while not check():
            assert time.monotonic() - began < WAIT_S, f"{what}: {self.logs()}"
            time.sleep(0.2)
        return time.monotonic() - began

    def type(self, lines: list[Typed]) -> float:
        """Type them until each answers what the page shows; the seconds of those that did."""
        took = 0.0
        for line in lines:
            until = time.monotonic() + WAIT_S
            while True:
                began = time.monotonic()
                done = subprocess.run(
                    ["bash", "-c", line.command],
                    check=False,
                    cwd=self.folder,
                    env=self.environ,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                if line.answers(done.stdout):
                    break
                shown = f"$ {line.command}\n{line.answer}\nand it answers\n{done.stdout}"
                assert is_a_look(line.command), shown
                assert time.monotonic() < until, f"{shown}\n{self.logs()}"
                time.sleep(0.5)
            took += time.monotonic() - began
        return took

    def logs(self) -> str:
        return "\n".join(path.read_text()[-4000:] for path in self.folder.glob("*.log"))


def is_a_look(command: str) -> bool:
    """Whether a command changes nothing, so that it may be typed again."""
    return (
        re.match(
            r"grep|curl|idempotent (?:doctor|pause$|dead (?:list|show)|keys (?:list|show)|outbox (?:list|stats))",
            command,
        )
        is not None
    )


def test_the_page_exports_what_the_test_replaces():
    exports = [line.command.split() for line in typed_in(PAGE.read_text().partition("\n## ")[0])]
    assert [(word, setting.partition("=")[0]) for word, setting in exports] == [
        ("export", name) for name in ("IDEMPOTENT_URL", "IDEMPOTENT_BROKER", "WORKER")
    ]


def test_each_trouble_has_alerts_of_ours_something_to_look_at_and_an_end():
    ours = set(re.findall(r"(?m)^ +- alert: (\w+)$", ALERTS.read_text()))
    for section in SECTIONS.values():
        assert set() < section.alerts <= ours
        assert section.look
        assert section.over


def test_an_answer_is_compared_but_for_what_varies():
    line = Typed("", "key  died\n...\nb ... 3 s ago\n")
    assert line.answers("key died\nx\ny\nb 1   5 min ago\n")
    assert line.answers("key    died\nb 1 5 d ago\n")
    assert not line.answers("key died\nc 1 5 d ago\n")
    assert not line.answers("key died\nb 1 5 d ago\nmore\n")


@dataclass
class Evening:
    """Works through the troubles, as the page says it."""

    shop: Shop
    prometheus: PrivatePrometheus
    began: dict[str, float] = field(default_factory=dict)

    def cause(self, title: str, cause: Callable[[], object]) -> None:
        self.began[title] = time.time()
        cause()

    def work_through(
        self,
        title: str,
        *,
        meanwhile: Callable[[], object] = lambda: None,
        mend: Callable[[], object] = lambda: None,
        effect: Callable[[], object],
    ) -> None:
        """Wait for the alerts, look, repair, and see that it is over.

        Args:
            title: of the section.
            meanwhile: goes on until the alerts fire.
            mend: what other people do before the repair.
            effect: whether it helped.
        """
        section, shop = SECTIONS[title], self.shop

        def fires() -> bool:
            meanwhile()
            return section.alerts <= self.prometheus.firing()

        shop.wait(fires, f"the alerts of {title!r}")
        look_s = shop.type(section.look)
        mended = time.monotonic()
        mend()
        repair_s = shop.type(section.repair)
        shop.wait(effect, f"the effect of the repair of {title!r}")
        over_s = time.monotonic() - mended
        shop.type(section.over)
        fired_s = max(map(self.prometheus.fired_at, section.alerts)) - self.began[title]
        log.info(
            "%s: alerts %.1f s after the cause, commands to look %.1f s, to repair %.1f s, effect %.1f s after it",
            *(title, fired_s, look_s, repair_s, over_s),
        )


@pytest.mark.slow
def test_an_operator_s_evening(tmp_path, private_postgres, private_rabbitmq, private_prometheus):
    with ExitStack() as stack:
        shop = Shop(tmp_path, private_postgres(), private_rabbitmq(), bank_in(stack), stack)
        shop.start("relay", f"{RELAY} {shop.ports[1]}")
        shop.start_worker()
        targets = [f"127.0.0.1:{port}" for port in shop.ports]
        prometheus = private_prometheus(*targets, rules=hurried(ALERTS.read_text()))
        evening = Evening(shop, prometheus)
        booked = shop.bank.booked
        # What takes long to show begins before it is looked at.
        evening.cause("A lapsed lease", partial(kill_in_a_handler, shop))
        evening.cause("A refused message of the outbox", partial(send_to_no_queue, shop))
        late: list[str] = []

        def pay_late() -> None:
            late.append(f"late-{len(late)}")
            shop.publish("orders.paid", {late[-1]: ORDER})

        evening.cause("The store dies", shop.postgres.kill)
        evening.work_through(
            "The store dies",
            meanwhile=pay_late,
            mend=shop.postgres.start,
            effect=lambda: set(late) <= set(booked),
        )
        evening.cause("A hung handler", partial(pay_at_a_bank_that_hangs, shop))
        evening.cause("A growing backlog", partial(forget_a_pause, shop))
        evening.cause("Poison messages", partial(publish_poison, shop))
        evening.work_through(
            "Poison messages",
            mend=lambda: (tmp_path / "customers.txt").write_text("8811\n8812\n"),
            effect=lambda: {"4713", "4714", "4715"} <= set(booked),
        )
        evening.work_through(
            "A refused message of the outbox",
            mend=lambda: shop.ask(lambda channel: channel.queue_declare("invoices.created", durable=True)),
            effect=lambda: shop.waiting("invoices.created") == 2,
        )
        evening.work_through("A growing backlog", effect=lambda: shop.waiting("mails") == 0)
        evening.work_through("A lapsed lease", effect=lambda: True)
        shop.publish("orders.paid", {"4710": ORDER})
        duplicates = 'idempotent_outcomes_total{consumer="orders.paid:billing", outcome="duplicate"} > 0'
        shop.wait(lambda: prometheus.query(duplicates), "a duplicate")
        evening.work_through(
            "A hung handler",
            mend=partial(restart_beside_a_bank_that_answers, shop),
            effect=lambda: "4712" in booked and "IdempotentLeaseLost" in prometheus.firing(),
        )
        shop.wait(lambda: not prometheus.firing(), "the end of all alerts")
        assert set(evening.began) == set(SECTIONS)
        assert booked.count("4710") == booked.count("4712") == 1
        log.info("%.0f s in all", time.monotonic() - shop.began)


def kill_in_a_handler(shop: Shop) -> None:
    """Kill the worker when the bank has booked; and somebody purges the queue before another one starts."""
    shop.bank.mute_to.add("4710")
    shop.publish("orders.paid", {"4710": ORDER})
    shop.wait(lambda: "4710" in shop.bank.booked, "a booked order")
    shop.processes["worker"].kill()
    shop.processes["worker"].wait()
    shop.wait(
        lambda: shop.ask(lambda channel: channel.queue_purge("orders.paid")).method.message_count, "a purge"
    )
    shop.start_worker()


def send_to_no_queue(shop: Shop) -> None:
    with closing(Outbox(shop.engine)) as outbox, shop.engine.begin() as connection:
        for name in ("invoice-4711", "invoice-4712"):
            outbox.send(connection, Message("invoices.created", b"{}", id=name), order_key="customer-8811")


def pay_at_a_bank_that_hangs(shop: Shop) -> None:
    shop.bank.deaf_to.add("4712")
    shop.publish("orders.paid", {"4712": ORDER})


def forget_a_pause(shop: Shop) -> None:
    words = ["idempotent", "pause", "mails:shop", "--note", "the mail server is down, OPS-12"]
    subprocess.run(words, check=True, cwd=shop.folder, env=shop.environ, capture_output=True)
    shop.wait(lambda: shop.says("consumer_paused"), "a pause")
    shop.publish("mails", {f"mail-{number}": b"{}" for number in range(300)})


def publish_poison(shop: Shop) -> None:
    shop.publish(
        "orders.paid", {**dict.fromkeys(("4713", "4714", "4715"), b'{"customer": "8812"}'), "4716": b"test"}
    )


def restart_beside_a_bank_that_answers(shop: Shop) -> None:
    shop.bank.deaf_to.clear()
    shop.processes["worker"].terminate()
    shop.processes["worker"].wait()
    shop.start_worker()
