"""StompAdapter when its broker, its network or its own process fails; and when it is told nonsense."""

import logging
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import psutil
import pytest

from idempotent import Message, Outcome, Registry, Result, Worker
from idempotent.adapters import adapter_from_url
from idempotent.adapters.activemq import StompAdapter
from idempotent.adapters.activemq.frames import Frame, send_frame
from idempotent.adapters.copies import REASON_HEADER
from idempotent.checkers import MemoryChecker, SqlChecker
from idempotent.errors import AdapterError, ConfigurationError
from idempotent.migrations import upgrade
from idempotent.policy import Backoff
from tests.adapters.activemq.member import (
    DEADLINE_S,
    QUICK,
    commands,
    frames_sent_by,
    ids,
    left,
    receive,
    send,
    until_left,
    work_until,
)
from tests.adapters.activemq.stomp_client import client, in_queue
from tests.support.services import PrivateActiveMq
from tests.support.services.activemq import MAX_FRAME_BYTES, PASSWORD, USER

ACK = Result(Outcome.PROCESSED)
# A call that waited for a broker that does not answer would take ten seconds, `connect_timeout_s`.
IN_TIME_S = 5.0


@contextmanager
def opened(url, *subjects, **options):
    registry = Registry()
    for subject in subjects:
        registry.consumer(subject, checker=MemoryChecker())(lambda message: None)
    adapter = StompAdapter(url, **{"backoff": QUICK, **options})
    try:
        adapter.open(tuple(registry.consumers.values()))
        yield adapter
    finally:
        adapter.close()


def with_user(url, password=PASSWORD):
    return url.replace("://", f"://{USER}:{password}@")


def receives_nothing_in_time(adapter):
    began = time.monotonic()
    assert adapter.receive(1, 0.1) == []
    assert time.monotonic() - began < IN_TIME_S
    return True


def until(look):
    deadline = time.monotonic() + DEADLINE_S
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# The broker


@pytest.mark.parametrize("ack", ["individual", "dups_ok", "transacted"])
def test_a_broker_killed_and_restarted_in_the_middle_costs_no_effect_and_repeats_none(spare, name, ack):
    server = spare(PrivateActiveMq)
    registry, effects = Registry(), []

    @registry.consumer(name, checker=MemoryChecker())
    def handle(message):
        time.sleep(0.005)
        effects.append(message.id)

    def outages():
        until(lambda: len(effects) > 50)
        server.kill()
        server.start()
        until(lambda: len(effects) > 150)
        server.restart()
        until(lambda: len(effects) >= 300)
        time.sleep(0.5)

    send(server.url, name, *map(str, range(300)))
    adapter = StompAdapter(server.url, backoff=QUICK, ack=ack)
    worker = Worker(registry, adapter, concurrency=3, gc_interval_s=None)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        outages()
    finally:
        worker.stop()
        thread.join(DEADLINE_S)
    assert sorted(effects, key=int) == list(map(str, range(300)))
    assert left(server.url, name) == []


def test_a_broker_that_is_down_at_the_start_is_waited_for_call_by_call(spare, name):
    server = spare(PrivateActiveMq)
    server.stop()
    with opened(server.url, name) as adapter:
        for timeout_s in (0.0, 0.3, 0.0):
            began = time.monotonic()
            assert adapter.receive(1, timeout_s) == []
            assert time.monotonic() - began < IN_TIME_S
        server.start()
        send(server.url, name, "a")
        adapter.settle(receive(adapter, 1)[0], ACK)
    assert left(server.url, name) == []


def test_a_broker_that_does_not_answer_holds_nobody_up_and_is_found_again(spare, name):
    server = spare(PrivateActiveMq)
    with opened(server.url, name, heartbeat_s=0.4, receipt_timeout_s=1.0) as adapter:
        send(server.url, name, "a")
        (old,) = receive(adapter, 1)
        server.pause()
        until(lambda: receives_nothing_in_time(adapter) and adapter._epoch is None)
        for _ in range(10):
            receives_nothing_in_time(adapter)
        assert adapter._epoch is None
        adapter.settle(old, ACK)
        assert adapter.stale_settlements == 1
        server.resume()
        (again,) = receive(adapter, 1)
        assert (again.message.id, again.message.redelivered) == ("a", True)
        adapter.settle(again, ACK)
    until_left(server.url, name)


def test_a_settlement_that_is_not_confirmed_in_time_counts_as_lost(spare, name):
    server = spare(PrivateActiveMq)
    with opened(server.url, name, receipt_timeout_s=0.5) as adapter:
        send(server.url, name, "a")
        (delivery,) = receive(adapter, 1)
        server.pause()
        adapter.settle(delivery, Result(Outcome.DEAD))
        server.resume()
        assert adapter.stale_settlements == 1
        (again,) = receive(adapter, 1)
        assert again.message.id == "a"


def test_with_fail_fast_a_missing_broker_is_an_error_without_credentials(spare, name):
    server = spare(PrivateActiveMq)
    server.stop()
    with (
        pytest.raises(AdapterError, match=r"cannot connect to stomp://127.0.0.1:\d+: .*refused") as raised,
        opened(with_user(server.url), name, fail_fast=True),
    ):
        pass
    assert PASSWORD not in str(raised.value)


@pytest.mark.parametrize("told", [False, None], ids=["told", "found out"])
def test_without_a_scheduler_failed_messages_wait_here_unacknowledged(spare, name, told):
    server = spare(PrivateActiveMq, "no-scheduler")
    with opened(server.url, name, scheduler=told) as adapter:
        for key in ("a", "b"):
            send(server.url, name, key)
            (delivery,) = receive(adapter, 1)
            adapter.settle(delivery, Result(Outcome.FAILED, retry_after_s=1.0))
            failed_at = time.monotonic()
            (again,) = receive(adapter, 1)
            assert time.monotonic() - failed_at > 0.8
            assert again.message.id == key
            assert left(server.url, name) == [key]
            adapter.settle(again, ACK)
            adapter.settle(delivery, ACK)
        assert adapter.stale_settlements == 2
    assert left(server.url, name) == []


def test_a_client_id_that_is_taken_is_waited_for(spare, name):
    server = spare(PrivateActiveMq)
    with opened(server.url, name, client_id=name) as adapter:
        adapter.receive(1, 1.0)
        with opened(server.url, name, client_id=name) as second:
            assert second.receive(1, 0.5) == []
            adapter.close()
            send(server.url, name, "a")
            assert ids(receive(second, 1)) == ["a"]


# Accounts


def test_a_wrong_password_stops_the_worker_and_is_told_to_nobody(spare, name, caplog):
    server = spare(PrivateActiveMq, "accounts")
    caplog.set_level(logging.DEBUG)
    with pytest.raises(AdapterError, match="wrong user name or password") as raised:
        work_until(one_consumer(name), with_user(server.url, "wr%40ng-s3cret"), lambda: False)
    assert "s3cret" not in str(raised.value) + repr(raised.value.__cause__)
    assert "s3cret" not in caplog.text
    with opened(with_user(server.url), name) as adapter:
        adapter.publish(Message(name, id="a"))
        assert ids(receive(adapter, 1)) == ["a"]
        assert PASSWORD not in repr(adapter._settings)
    assert PASSWORD not in caplog.text


def one_consumer(subject):
    registry = Registry()
    registry.consumer(subject, checker=MemoryChecker())(lambda message: None)
    return registry


def test_a_subject_that_may_not_be_read_stops_the_worker(spare):
    server = spare(PrivateActiveMq, "accounts")
    with pytest.raises(AdapterError, match="wrong user name or password"):
        work_until(one_consumer("orders"), server.url, lambda: False)


@pytest.mark.parametrize("ack", ["individual", "client", "transacted"])
def test_where_the_dead_letter_is_refused_the_original_stays(spare, name, ack):
    server = spare(PrivateActiveMq, "accounts")
    root = {"login": "root", "passcode": PASSWORD}
    with client(server.url, **root) as sender:
        sender.publish(f"/queue/{name}", b"x", {"x-idempotent-key": "a"})
    with opened(with_user(server.url), name, ack=ack, dead_letter_destination="locked.graves") as adapter:
        (delivery,) = receive(adapter, 1)
        with pytest.raises(AdapterError, match=r"not authorized to write to: queue://locked.graves"):
            adapter.settle(delivery, Result(Outcome.DEAD))
    assert [message.id for message in in_queue(server.url, f"/queue/{name}", **root)] == ["a"]
    assert in_queue(server.url, "/queue/locked.graves", **root) == []


def test_after_an_abort_the_same_frames_can_be_settled_again(spare, name, monkeypatch):
    server = spare(PrivateActiveMq, "accounts")
    with opened(with_user(server.url), name, ack="transacted") as adapter:
        adapter.publish(Message(name, id="a"))
        (delivery,) = receive(adapter, 1)
        connection = adapter._epoch.connection
        sent = frames_sent_by(adapter, monkeypatch)
        forbidden = send_frame("/queue/locked.graves", b"", {})
        with pytest.raises(AdapterError, match="not authorized"):
            connection.transact(
                [forbidden, Frame("ACK", {"id": delivery.token.held.ack_id})], "a transaction"
            )
        assert commands(sent) == ["BEGIN", "SEND", "ACK", "ABORT"]
        assert adapter.receive(1, 0.2) == [], "the broker does not deliver it again by itself"
        adapter.settle(delivery, ACK)
        adapter.receive(1, 0.2)
    with opened(with_user(server.url), name) as second:
        assert second.receive(1, 0.5) == []


# TLS


def test_over_tls_everything_works_as_without(spare, name):
    server = spare(PrivateActiveMq, "tls")
    body = secrets.token_bytes(300_000)
    with opened(server.tls_url, name, ca_file=str(server.ca_file)) as adapter:
        adapter.publish(Message(name, body, id="a"))
        (delivery,) = receive(adapter, 1)
        assert delivery.message.body == body
        adapter.settle(delivery, Result(Outcome.FAILED, retry_after_s=0.2))
        (again,) = receive(adapter, 1)
        adapter.settle(again, Result(Outcome.DEAD))
    assert [letter.body for letter in in_queue(server.url, f"/queue/{name}.dead")] == [body]


def test_the_end_of_an_encrypted_connection_is_noticed_at_once_and_costs_no_processor(spare, name):
    server = spare(PrivateActiveMq, "tls")
    with opened(server.tls_url, name, ca_file=str(server.ca_file), heartbeat_s=60.0) as adapter:
        adapter.publish(Message(name, id="a"))
        (old,) = receive(adapter, 1)
        server.kill()
        deadline = time.monotonic() + 20.0  # a third of a heartbeat
        while adapter._epoch is not None and time.monotonic() < deadline:
            adapter.receive(1, 0.05)
        assert adapter._epoch is None
        before = psutil.Process().cpu_times().user
        adapter.receive(1, 1.0)
        assert psutil.Process().cpu_times().user - before < 0.7
        server.start()
        (again,) = receive(adapter, 1)
        assert again.message.id == "a"
        adapter.settle(old, ACK)
        assert adapter.stale_settlements == 1


def test_a_mismatch_of_encryption_is_an_error_that_says_so(spare, name):
    server = spare(PrivateActiveMq, "tls")
    with (
        pytest.raises(AdapterError, match="certificate verify failed"),
        opened(server.tls_url, name, fail_fast=True),
    ):
        pass
    plain_port = server.url.replace("stomp:", "stomp+ssl:")
    with (
        pytest.raises(AdapterError, match="cannot connect to stomp"),
        opened(plain_port, name, fail_fast=True, connect_timeout_s=2.0),
    ):
        pass
    tls_port = server.tls_url.replace("stomp+ssl:", "stomp:")
    with (
        pytest.raises(AdapterError, match="cannot connect to stomp"),
        opened(tls_port, name, fail_fast=True, connect_timeout_s=2.0),
    ):
        pass


# Nonsense


def test_a_body_that_the_broker_does_not_take_is_an_error_and_the_next_one_goes_through(spare, name):
    server = spare(PrivateActiveMq)
    with opened(server.url, name) as adapter:
        with pytest.raises(AdapterError, match=r"did not confirm a message|refused"):
            adapter.publish(Message(name, bytes(2 * MAX_FRAME_BYTES), id="big"))
        adapter.publish(Message(name, bytes(MAX_FRAME_BYTES // 2), id="small"))
        assert ids(receive(adapter, 1)) == ["small"]


@pytest.mark.parametrize(
    ("url", "options", "match"),
    [
        ("stomp://", {}, "looks like"),
        ("http://host", {}, "looks like"),
        ("stomp://user:s3cret@host/path", {}, "looks like"),
        ("stomp://user:s3cret@host:99999", {}, "up to 65535"),
        ("stomp://user:s3%0Acret@host", {}, "line breaks"),
        ("stomp://host", {"ca_file": "x"}, r"needs a stomp\+ssl"),
        ("stomp+ssl://host", {"ca_file": "/nowhere"}, "no such file"),
        ("stomp+ssl://host", {"ca_file": __file__}, "cannot read the certificates in"),
        (
            "stomp://host",
            {"ack": "never"},
            "ack must be one of 'auto', 'client', 'dups_ok', 'transacted', 'individual'",
        ),
        ("stomp://host", {"prefetch": 0}, "at least 1"),
        ("stomp://host", {"heartbeat_s": 0}, "heartbeat_s must be positive"),
        ("stomp://host", {"optimize_acknowledge": True}, 'needs ack="auto"'),
    ],
)
def test_what_cannot_work_is_said_at_once_and_without_the_password(url, options, match):
    with pytest.raises(ConfigurationError, match=match) as raised:
        StompAdapter(url, **options)
    assert "s3" not in str(raised.value)


def test_an_unknown_option_of_a_url_is_named():
    with pytest.raises(ConfigurationError, match="unknown option 'prefetched'"):
        adapter_from_url("stomp://host?prefetched=1")


@contextmanager
def server_that_answers(answer):
    """A server that reads one frame and answers so."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)
                connection.settimeout(5.0)
                try:
                    connection.recv(1)
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"stomp://127.0.0.1:{listening.getsockname()[1]}"
        thread.join(10.0)


# What Artemis greets with: its server header is all that tells it apart.
ARTEMIS = (
    b"CONNECTED\nversion:1.2\nsession:6ae3b7f4\n"
    b"server:ActiveMQ-Artemis/2.31.2 ActiveMQ Artemis Messaging Engine\nheart-beat:0,0\n\n\0\n"
)


def test_artemis_is_refused_because_its_ids_and_transactions_do_not_hold(name):
    with (
        server_that_answers(ARTEMIS) as url,
        pytest.raises(AdapterError, match=r"ActiveMQ-Artemis/2\.31.*supports ActiveMQ Classic"),
    ):
        work_until(one_consumer(name), url, lambda: False)


def test_a_server_of_an_older_protocol_is_refused(name):
    with (
        server_that_answers(b"CONNECTED\nversion:1.0\n\n\0") as url,
        pytest.raises(AdapterError, match=r"does not speak STOMP 1\.2"),
    ):
        work_until(one_consumer(name), url, lambda: False)


def test_a_server_that_says_nothing_is_given_up_in_time(name):
    with server_that_answers(b"") as url:
        began = time.monotonic()
        with (
            pytest.raises(AdapterError, match="cannot connect"),
            opened(url, name, fail_fast=True, connect_timeout_s=0.5),
        ):
            pass
        assert time.monotonic() - began < 5.0


# Crashes of this process

CHILD = """
import os, signal, sys
from idempotent import Registry, Worker
from idempotent.adapters.activemq import StompAdapter
from idempotent.adapters.activemq.connection import StompConnection
from idempotent.checkers import SqlChecker

url, store, name, point = sys.argv[1:]

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

send = StompConnection.send
def sending(self, frame):
    if frame.command == point:
        die()
    send(self, frame)
StompConnection.send = sending

registry = Registry()

@registry.consumer(name, checker=SqlChecker(store, lease_s=1.0), max_attempts=1)
def handle(message):
    if point == "handler":
        die()
    print("effect", flush=True)
    if message.body == b"poison":
        raise ValueError("poison")

Worker(registry, StompAdapter(url), gc_interval_s=None).run()
"""


def killed_at(point, url, store, name):
    child = subprocess.run(
        [sys.executable, "-c", CHILD, url, store, name, point],
        check=False,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    return child.stdout.count("effect")


@pytest.fixture
def store(tmp_path):
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    upgrade(url)
    return url


def counting(name, store, effects):
    registry = Registry()

    @registry.consumer(name, checker=SqlChecker(store, lease_s=1.0), max_attempts=1)
    def handle(message):
        effects.append(message.id)
        if message.body == b"poison":
            raise ValueError("poison")

    return registry


@pytest.mark.parametrize("point", ["SEND", "ACK"], ids=["before the copy", "after it"])
def test_killed_between_the_verdict_and_the_dead_letter_nothing_is_lost(stomp_url, store, name, point):
    send(stomp_url, name, "a", body=b"poison")
    assert killed_at(point, stomp_url, store, name) == 1
    until_left(stomp_url, name, "a")
    effects = []
    work_until(counting(name, store, effects), stomp_url, lambda: not left(stomp_url, name))
    assert effects == []
    letters = in_queue(stomp_url, f"/queue/{name}.dead")
    # One more where the first copy had been confirmed: the same message, by its id.
    assert [letter.id for letter in letters] == ["a"] * (1 if point == "SEND" else 2)
    assert "poison" in letters[0].headers[REASON_HEADER]


def test_reconnecting_waits_longer_and_longer(name):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with opened(f"stomp://127.0.0.1:{port}", name, backoff=Backoff(initial_s=0.3, maximum_s=5.0)) as adapter:
        adapter.receive(1, 1.0)
        assert 1 <= adapter._reconnecting._failures <= 4
