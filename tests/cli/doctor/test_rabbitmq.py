"""Queues that are missing, end, or give up messages are found over AMQP and the management API; nothing is changed."""

import base64
import json
import secrets
import time
from contextlib import contextmanager
from urllib.request import Request, urlopen

import pika
import pytest

from idempotent import Message
from idempotent.adapters.rabbitmq.findings import queue_findings
from idempotent.admin import Level
from tests.adapters.rabbitmq.rabbit import Rabbit
from tests.support.services import PrivateRabbitMq
from tests.support.services.rabbitmq import MANAGEMENT, PASSWORD, USER


@pytest.fixture
def rabbit(rabbitmq_url):
    rabbit = Rabbit(rabbitmq_url)
    yield rabbit
    rabbit.clean_up()


def levels(answer, part):
    return [line["level"] for line in answer.lines if part in line["what"]]


def test_queues_of_a_worker_are_healthy_and_the_queues_that_are_missing_are_made_by_it(cli, rabbit):
    queue = rabbit.declare_all(rabbit.name())
    words = ("doctor", "--broker", rabbit.url, "--subject", queue, "--json")
    answer = cli(*words)
    assert answer.code == 0, answer.out
    assert levels(answer, "the broker answers: RabbitMQ") == ["ok"]
    assert levels(answer, "AMQP tells neither") == ["advice"]
    new = cli("doctor", "--broker", rabbit.url, "--subject", rabbit.name(), "--json")
    assert (new.code, levels(new, "does not exist yet")) == (0, ["advice", "advice"])


def test_a_missing_dead_letter_queue_is_found(cli, rabbit):
    queue = rabbit.declare(rabbit.name())
    missing = f"the dead-letter queue {queue}.dead does not exist"
    answer = cli("doctor", "--broker", rabbit.url, "--subject", queue, "--json")
    assert (answer.code, levels(answer, missing)) == (1, ["warning"])
    strict = cli("doctor", "--broker", f"{rabbit.url}?declare=false", "--subject", queue, "--json")
    assert (strict.code, levels(strict, missing)) == (1, ["error"])
    other = cli("doctor", "--broker", f"{rabbit.url}?dead_letter_queue={queue}", "--subject", queue, "--json")
    assert other.code == 0


def test_the_module_names_the_queues_and_nothing_is_made_consumed_or_changed(cli, rabbit, project):
    queue = rabbit.declare(rabbit.name())
    rabbit.declare(f"{queue}.dead")
    rabbit.send(Message(queue, b"1"), Message(f"{queue}.dead", b"2"))
    (project / "doctor_shop.py").write_text(
        f"from idempotent import Registry\nregistry = Registry()\n"
        f"@registry.consumer({queue!r}, group='billing', checker='db')\n"
        "def on_paid(message): ...\n"
    )
    before = _queues(rabbit, queue)
    answer = cli("doctor", "doctor_shop:registry", "--broker", rabbit.url, "--json")
    (found,) = (line for line in answer.lines if f"dead letters wait in {queue}.dead: 1" in line["what"])
    typed = "idempotent dead list doctor_shop:registry --broker env:VARIABLE --checker db=URL"
    assert (found["level"], found["hint"]) == ("warning", typed)
    assert _queues(rabbit, queue) == before == {queue: 1, f"{queue}.dead": 1}


def _queues(rabbit, prefix):
    """The queues whose names begin so, and how many messages are ready in them."""
    found = {}
    for name in (prefix, f"{prefix}.dead", f"{prefix}.retry.due"):
        with rabbit.channel() as channel:
            try:
                found[name] = channel.queue_declare(name, passive=True).method.message_count
            except pika.exceptions.ChannelClosedByBroker:
                continue
    return found


def test_an_exclusive_queue_is_found(cli, rabbit):
    queue = rabbit.name()
    with rabbit.channel() as channel:
        channel.queue_declare(queue, exclusive=True)
        answer = cli("doctor", "--broker", rabbit.url, "--subject", queue, "--json")
    assert levels(answer, f"the queue {queue} is exclusive") == ["error"]


def test_a_broker_that_is_not_there_or_refuses_has_an_exit_code_of_its_own(cli, rabbit):
    answer = cli("doctor", "--broker", "amqp://me:geheim@127.0.0.1:1", "--json")
    assert (answer.code, answer.lines[0]["level"]) == (5, "error")
    refused = cli("doctor", "--broker", rabbit.url.replace(":idempotent@", ":geheim@"), "--json")
    assert (refused.code, "user name or the password" in refused.lines[0]["what"]) == (5, True)
    assert "geheim" not in answer.out + refused.out


@contextmanager
def policy(server, name, **definition):
    """Meanwhile queues of this name have a policy."""
    pairs = ", ".join(f'{{<<"{each.replace("_", "-")}">>, {value}}}' for each, value in definition.items())
    owner = '<<"tests">>'
    server.evaluate(
        f'rabbit_policy:set(<<"/">>, <<"{name}">>, <<"^{name}$">>, [{pairs}], 0, <<"queues">>, {owner}).'
    )
    try:
        yield
    finally:
        server.evaluate(f'rabbit_policy:delete(<<"/">>, <<"{name}">>, {owner}).')


@pytest.mark.slow
def test_what_amqp_does_not_tell_the_management_api_does(cli, spare):
    server = spare(PrivateRabbitMq, MANAGEMENT)
    rabbit = Rabbit(server.url)
    words = ("doctor", "--broker", f"{server.url}?management={server.management_url}", "--json", "--subject")

    def found(queue):
        answer = cli(*words, queue)
        assert not levels(answer, "management API"), answer.out
        return {
            (line["level"], line["what"]) for line in answer.lines if f"the queue {queue} " in line["what"]
        }

    good = rabbit.declare_all(rabbit.name())
    assert found(good) == {("ok", f"the queue {good} (classic) keeps its messages")}

    quorum = {"x-queue-type": "quorum", "x-delivery-limit": 5}
    bare = rabbit.declare_all(rabbit.name(), **quorum)
    ((level, what),) = found(bare)
    assert (level, "drops a message that was returned 5 times" in what) == ("error", True)
    safe = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    aimed = rabbit.declare_all(rabbit.name(), **quorum, **safe)
    assert {level for level, _ in found(aimed)} == {"ok"}

    with rabbit.channel() as channel:
        brief = rabbit.name()
        channel.queue_declare(brief, auto_delete=True)
        assert {level for level, _ in found(brief)} == {"error"}
        assert len(found(brief)) == 2  # not durable, and auto_delete
    with policy(server, good, expires=60000, message_ttl=1000, max_length=10):
        # The statistics of a queue, which tell its policy, are some seconds old.
        until = time.monotonic() + 60
        while len(found(good)) != 3 and time.monotonic() < until:
            time.sleep(0.2)
        said = " ".join(what for _, what in found(good))
    assert ("(expires)" in said, "(message-ttl)" in said, "(max-length)" in said) == (True, True, True)
    before = _everything(server)
    found(good)
    assert _everything(server) == before
    rabbit.clean_up()

    wrong = cli(
        "doctor", "--broker", f"{server.url}?management=http://127.0.0.1:1", "--json", "--subject", "x"
    )
    assert wrong.code == 0  # no queue to ask about


def _everything(server):
    """All queues with what their broker knows of them, but for what changes by itself."""
    login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    request = Request(f"{server.management_url}/api/queues", headers={"Authorization": f"Basic {login}"})
    with urlopen(request, timeout=10) as answer:
        return {
            each["name"]: (each["arguments"], each["durable"], each["type"], each.get("policy"))
            for each in json.load(answer)
        }


KEEPS = {"name": "q", "type": "classic", "durable": True, "arguments": {}, "effective_policy_definition": []}
QUORUM = KEEPS | {"type": "quorum"}


@pytest.mark.parametrize(
    ("about", "nodes", "default_limit", "level"),
    [
        (KEEPS, 1, True, Level.OK),
        (KEEPS, 3, True, Level.WARNING),
        (QUORUM, 3, False, Level.OK),
        (QUORUM, 3, True, Level.ERROR),  # the default limit of RabbitMQ 4, and no dead-letter exchange
        (QUORUM | {"arguments": {"x-delivery-limit": -1}}, 3, True, Level.OK),
        (QUORUM | {"arguments": {"x-dead-letter-exchange": ""}}, 3, True, Level.WARNING),
        (KEEPS | {"type": "stream"}, 1, True, Level.ERROR),
        (KEEPS | {"effective_policy_definition": {"consumer-timeout": 60_000}}, 1, True, Level.WARNING),
        (KEEPS | {"arguments": {"x-max-length": 9, "x-overflow": "reject-publish"}}, 1, True, Level.OK),
    ],
)
def test_what_needs_a_cluster_or_a_newer_broker_is_judged_by_what_it_would_tell(
    about, nodes, default_limit, level
):
    found = queue_findings(about, dead="q.dead", nodes=nodes, has_default_limit=default_limit)
    assert [each.level for each in found] == [level]


def test_a_queue_that_is_not_durable_comes_with_what_deletes_it():
    about = KEEPS | {"durable": False, "vhost": "my shop"}
    (found,) = queue_findings(about, dead="q.dead", nodes=1, has_default_limit=True)
    assert "rabbitmqctl delete_queue -p 'my shop' q --if-empty" in found.hint


def test_a_management_url_with_a_password_of_its_own_is_refused_without_it(cli):
    answer = cli(
        "doctor", "--broker", f"amqp://localhost?management=http://me:{secrets.token_hex()}@h:1", "--json"
    )
    assert answer.code == 3
    assert "http://host:15672" in answer.err
