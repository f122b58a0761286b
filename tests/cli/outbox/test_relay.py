"""`idempotent relay`: a process that publishes until it is told to stop."""

import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
import sqlalchemy as sa

from tests.adapters.rabbitmq.rabbit import Rabbit
from tests.cli.outbox.sending import send, until
from tests.project.house import ROOT


@pytest.fixture
def rabbit(rabbitmq_url):
    made = Rabbit(rabbitmq_url)
    yield made
    made.clean_up()


def words(sql_store, *brokers):
    named = [word for broker in brokers for word in ("--broker", broker)]
    return ["relay", "--outbox", sql_store.url, "--table", sql_store.table, *named]


@contextmanager
def running(sql_store, *options):
    """The command in a process of its own."""
    program = subprocess.Popen(
        [sys.executable, "-m", "idempotent.cli", *words(sql_store), *options],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield program
    finally:
        program.kill()
        program.communicate()


@pytest.mark.parametrize("broker", ["memory://", "file:///tmp/x.jsonl"])
def test_a_relay_needs_a_broker_that_keeps_messages(cli, outbox, sql_store, broker):
    send(outbox, sql_store, "kept")
    answer = cli(*words(sql_store, broker))
    assert answer.code not in (0, 1)
    assert outbox.store.stats().waiting == 1


def test_two_brokers_need_names(cli, outbox, sql_store):
    answer = cli(*words(sql_store, "amqp://a", "amqp://b"))
    assert answer.code == 3
    assert "--broker NAME=URL" in answer.err


def test_each_broker_gets_what_was_sent_to_its_name(cli, outbox, sql_store, rabbit, rabbitmq_url):
    plain, other = rabbit.declare(rabbit.name()), rabbit.declare(rabbit.name())
    send(outbox, sql_store, "1", subject=plain)
    send(outbox, sql_store, "2", subject=other, to="mail")
    assert cli(*words(sql_store, rabbitmq_url, f"mail={rabbitmq_url}"), "--until-empty").code == 0
    assert (rabbit.depth(plain), rabbit.depth(other)) == (1, 1)


def test_until_empty_ends_with_1_if_a_message_is_held(cli, outbox, sql_store, rabbit, rabbitmq_url):
    send(outbox, sql_store, "1", subject=rabbit.name())
    answer = cli(*words(sql_store, rabbitmq_url), "--until-empty")
    assert answer.code == 1
    assert "1 message held" in answer.err
    assert outbox.store.stats().held == 1


def test_until_empty_tells_of_what_is_delayed(cli, outbox, sql_store, rabbit, rabbitmq_url):
    send(outbox, sql_store, "1", subject=rabbit.declare(rabbit.name()), delay_s=600)
    answer = cli(*words(sql_store, rabbitmq_url), "--until-empty")
    assert answer.code == 0
    assert "1 delayed message left" in answer.err


@pytest.mark.parametrize("sql_store", ["postgres", "mysql"], indirect=True)
def test_the_url_may_be_that_of_an_asyncio_driver(cli, outbox, sql_store, rabbit, rabbitmq_url):
    queue = rabbit.declare(rabbit.name())
    send(outbox, sql_store, "1", subject=queue)
    url = sql_store.async_engine().url
    store = replace(sql_store, url=url.render_as_string(hide_password=False))
    assert cli("outbox", "stats", "--url", store.url, "--table", store.table, "--json").line["waiting"] == 1
    assert cli("doctor", "--url", store.url, "--table", store.table).code == 1
    assert cli("migrate", "current", "--url", store.url, "--table", store.table).code in (0, 1)
    assert cli(*words(store, rabbitmq_url), "--until-empty").code == 0
    assert rabbit.depth(queue) == 1


def test_until_empty_does_not_wait_for_a_broker_that_is_not_named(
    cli, outbox, sql_store, rabbit, rabbitmq_url
):
    queue = rabbit.declare(rabbit.name())
    send(outbox, sql_store, "1", subject=queue)
    send(outbox, sql_store, "2", subject=queue, to="mail")
    answer = cli(*words(sql_store, rabbitmq_url), "--until-empty")
    assert answer.code == 1
    assert "1 message left" in answer.err
    assert rabbit.depth(queue) == 1


def test_a_wrong_password_is_an_error_at_once(cli, outbox, sql_store, rabbitmq_url):
    address = sa.make_url(rabbitmq_url).set(password="wrong").render_as_string(hide_password=False)
    answer = cli(*words(sql_store, address))
    assert answer.code == 5
    assert "wrong" not in answer.err


def test_fail_fast_does_not_wait_for_a_broker(cli, outbox, sql_store):
    assert cli(*words(sql_store, "amqp://127.0.0.1:1"), "--fail-fast").code == 5


@pytest.mark.slow
def test_the_relay_publishes_until_it_is_told_to_stop(outbox, sql_store, rabbit, rabbitmq_url, tmp_path):
    queue, health = rabbit.declare(rabbit.name()), tmp_path / "health"
    with running(sql_store, "--broker", rabbitmq_url, "--health-file", str(health)) as program:
        for number in range(100):
            send(outbox, sql_store, str(number), subject=queue, order_key=str(number % 7))
        until(lambda: rabbit.depth(queue) == 100)
        until(lambda: outbox.store.stats().waiting == 0)
        assert health.read_text() == "ready\n"
        program.send_signal(signal.SIGTERM)
        errors = program.communicate(timeout=60)[1]
    assert program.returncode == 0, errors
    assert outbox.store.stats().relays == 0
    assert not health.exists()


@pytest.mark.slow
@pytest.mark.parametrize("sql_store", ["postgres", "mysql"], indirect=True)
def test_a_second_signal_does_not_wait_for_a_database_that_hangs(outbox, sql_store, rabbitmq_url):
    with running(sql_store, "--broker", rabbitmq_url) as program:
        until(lambda: outbox.store.stats().relays == 1)
        with sql_store.admin_engine.begin() as connection:
            lock = (
                "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE"
                if sql_store.kind == "postgres"
                else "LOCK TABLES {} WRITE"
            )
            connection.execute(sa.text(lock.format(f"{sql_store.table}_outbox_leases")))
            program.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                program.wait(1.0)
            program.send_signal(signal.SIGTERM)
            assert program.wait(60.0) == 130
            if sql_store.kind == "mysql":
                connection.execute(sa.text("UNLOCK TABLES"))
