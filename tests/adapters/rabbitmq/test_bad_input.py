"""RabbitMqAdapter, given what cannot work: says what to check, and never a password."""

import builtins
import logging
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from idempotent import Message, Outcome, Result
from idempotent.adapters import adapter_from_url
from idempotent.adapters.rabbitmq import RabbitMqAdapter
from idempotent.errors import AdapterError, ConfigurationError
from tests.adapters.rabbitmq.rabbit import Rabbit, consumer_of, receive
from tests.support.logs import logged

ACK = Result(Outcome.PROCESSED)
SECRET = "hunter2"


def url_with(url, **changes):
    parts = urlsplit(url)
    values = {"user": parts.username, "password": parts.password, "vhost": parts.path[1:], **changes}
    return f"amqp://{values['user']}:{values['password']}@127.0.0.1:{parts.port}/{values['vhost']}"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prefetch": 0}, "prefetch must be from 1"),
        ({"prefetch": 70_000}, "prefetch must be from 1"),
        ({"ack_batch": 0}, "ack_batch"),
        ({"ack_interval_s": 0}, "ack_interval_s"),
        ({"heartbeat_s": 0}, "heartbeat_s"),
        ({"ack": "never"}, "one of 'manual', 'batched', 'auto'"),
        ({"queue_type": "stream"}, "one of 'classic', 'quorum'"),
        ({"ca_file": "ca.pem"}, "amqps://"),
    ],
)
def test_an_option_out_of_its_range_is_refused(options, words):
    with pytest.raises(ConfigurationError, match=words):
        RabbitMqAdapter("amqp://localhost", **options)


@pytest.mark.parametrize(
    "url",
    [
        f"http://u:{SECRET}@host",
        f"amqp://u:{SECRET}/{SECRET}@host:x/",
        f"amqp://u:{SECRET}@host:port/",
        f"amqp://u:{SECRET}@host/?prefetch=3",
        f"amqp://u:{SECRET}#@host/",
    ],
)
def test_a_url_that_is_none_is_refused_without_its_password(url):
    with pytest.raises(ConfigurationError) as raised:
        RabbitMqAdapter(url)
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None


def test_an_unknown_option_in_a_url_is_refused():
    with pytest.raises(ConfigurationError, match="unknown option 'prefech'"):
        adapter_from_url("amqp://localhost/?prefech=3")
    with pytest.raises(ConfigurationError, match="of type int"):
        adapter_from_url("amqp://localhost/?prefetch=many")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"ca_file": "missing.pem"}, "cannot read the TLS files"),
        ({"cert_file": "missing.pem"}, "cannot read the TLS files"),
        ({"key_file": "missing.pem"}, "needs a cert_file"),
    ],
)
def test_tls_files_that_cannot_be_read_are_refused(files, words):
    with pytest.raises(ConfigurationError, match=words):
        RabbitMqAdapter("amqps://localhost", **files)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"password": SECRET}, "user name or the password"),
        ({"user": "nobody", "password": SECRET}, "user name or the password"),
        ({"vhost": "nowhere"}, "virtual host"),
    ],
)
def test_a_refused_login_stops_with_what_to_check(rabbit, caplog, changes, words):
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="pika")
    url = url_with(rabbit.url, **changes)
    adapter = rabbit.adapter(url)
    with pytest.raises(AdapterError, match=words) as raised:
        adapter.open([consumer_of("orders")])
    password = urlsplit(url).password
    # The private broker's user has a password like his name, which is no secret.
    if password == SECRET:
        assert SECRET not in str(raised.value)
        assert SECRET not in repr(raised.value.__cause__)
        assert SECRET not in caplog.text
        assert SECRET not in repr(adapter._server)


@pytest.mark.slow
def test_a_user_without_permissions_is_told_so(tuned_rabbitmq):
    broker = tuned_rabbitmq
    broker.tune("max_message_size", 100_000)
    rabbit = Rabbit(broker.url)
    queue, user = rabbit.name(), rabbit.name("reader")
    users = "rabbit_auth_backend_internal"
    broker.evaluate(f'{users}:add_user(<<"{user}">>, <<"{SECRET}">>, <<"tests">>).')
    nothing, all_ = '<<"^$">>', '<<".*">>'
    broker.evaluate(
        f'{users}:set_permissions(<<"{user}">>, <<"/">>, {nothing}, {all_}, {all_}, <<"tests">>).'
    )
    poor = rabbit.adapter(url_with(broker.url, user=user, password=SECRET))
    with pytest.raises(AdapterError, match="lacks a permission"):
        poor.open([consumer_of(queue)])
    # And with it: queues that others have made are enough.
    rabbit.declare_all(queue)
    modest = rabbit.adapter(url_with(broker.url, user=user, password=SECRET), declare=False)
    modest.open([consumer_of(queue)])
    rabbit.send(Message(queue, b"x" * 90_000, id="1"))
    (delivery,) = receive(modest)
    # Too large a message is an error of its own, and of nobody else.
    with pytest.raises(AdapterError, match=r"larger than|size"):
        modest.publish(Message(queue, b"x" * 200_000, id="2"))
    modest.publish(Message(queue, id="3"))
    modest.settle(delivery, ACK)
    assert receive(modest)[0].message.id == "3"
    assert modest.stale_settlements == 0
    modest.close()


def test_an_unknown_queue_is_an_error_where_none_may_be_made(rabbit):
    with pytest.raises(AdapterError, match="queue does not exist"):
        rabbit.adapter(declare=False).open([consumer_of("no-such-queue")])
    assert not rabbit.exists("no-such-queue")


def test_a_message_for_a_queue_that_does_not_exist_is_not_taken(rabbit):
    queue = rabbit.declare_all(rabbit.name())
    adapter = rabbit.adapter(declare=False)
    adapter.open([consumer_of(queue)])
    with pytest.raises(AdapterError, match="does not exist"):
        adapter.publish(Message("no-such-queue", id="1"))
    with pytest.raises(AdapterError, match="no queue"):
        adapter.publish(Message("q" * 300, id="1"))
    adapter.publish(Message(queue, id="1"))
    assert receive(adapter)
    adapter.close()


def test_a_queue_that_a_message_makes_is_told(rabbit, caplog):
    missing = rabbit.name()
    adapter = rabbit.adapter()
    with caplog.at_level("INFO"):
        adapter.publish_many([Message(missing, id="1"), Message(missing, id="2")])
        adapter.publish(Message(missing, id="3"))
    adapter.close()
    created = [record.queue for record in logged(caplog, "queue_created")]
    assert created == [missing]


def test_of_many_messages_none_for_a_missing_queue_is_lost_unsaid(rabbit):
    queue, missing = rabbit.declare(rabbit.name()), rabbit.name()
    messages = [Message(queue if number else missing, id=str(number)) for number in range(700)]
    adapter = rabbit.adapter(declare=False)
    with pytest.raises(AdapterError, match="does not exist"):
        adapter.publish_many(messages)
    with pytest.raises(AdapterError, match="no queue"):
        adapter.publish_many([*messages[1:], Message("q" * 300, id="long")])
    adapter.close()
    adapter = rabbit.adapter()
    adapter.publish_many(messages)
    adapter.open([consumer_of(missing)])
    assert [delivery.message.id for delivery in receive(adapter)] == ["0"]
    adapter.close()


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"big": "x" * 200_000}, "bytes"),
        ({"object": object()}, "cannot be sent"),
        ({"k" * 300: 1}, "cannot be sent"),
    ],
    ids=["too large", "not AMQP", "too long a name"],
)
def test_headers_that_cannot_be_sent_harm_no_other_message(rabbit, headers, words):
    queue = rabbit.declare(rabbit.name())
    adapter = rabbit.adapter()
    adapter.open([consumer_of(queue)])
    with pytest.raises(AdapterError, match=words):
        adapter.publish(Message(queue, id="1", headers=headers))
    adapter.publish(Message(queue, id="2"))
    assert receive(adapter)[0].message.id == "2"
    adapter.close()


# TLS


@pytest.fixture(scope="module")
def certificates():
    # Not among pytest's folders: the broker runs as somebody else, who may not look into those.
    folder = Path(tempfile.mkdtemp(prefix="idempotent-tls-"))
    folder.chmod(0o755)

    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)

    for name in ("ca", "other"):
        openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", f"{name}.key", "-out", f"{name}.pem"),
        )
    openssl(
        *("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=broker"),
        *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "broker.key", "-out", "broker.csr"),
    )
    openssl(
        *("x509", "-req", "-in", "broker.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
        *("-days", "2", "-copy_extensions", "copy", "-out", "broker.pem"),
    )
    (folder / "broker.key").chmod(0o644)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
def test_tls_is_checked_and_a_mismatch_is_explained(private_rabbitmq, certificates):
    from tests.support.services.process import free_port

    port = free_port()
    broker = private_rabbitmq(
        f"listeners.ssl.1 = 127.0.0.1:{port}",
        f"ssl_options.cacertfile = {certificates}/ca.pem",
        f"ssl_options.certfile = {certificates}/broker.pem",
        f"ssl_options.keyfile = {certificates}/broker.key",
    )
    rabbit = Rabbit(broker.url)
    login = broker.url.partition("@")[0].partition("//")[2]
    secure = f"amqps://{login}@127.0.0.1:{port}"
    good = rabbit.adapter(secure, ca_file=f"{certificates}/ca.pem")
    good.open([consumer_of("orders")])
    good.publish(Message("orders", id="1"))
    good.settle(receive(good)[0], ACK)
    good.close()
    with pytest.raises(AdapterError, match="certificate is not trusted"):
        rabbit.adapter(secure, ca_file=f"{certificates}/other.pem").open([consumer_of("orders")])
    with pytest.raises(AdapterError, match="certificate is not trusted"):
        rabbit.adapter(secure).open([consumer_of("orders")])
    with pytest.raises(AdapterError, match="does this port speak TLS"):
        rabbit.adapter(f"amqps://{login}@127.0.0.1:{broker.port}").open([consumer_of("orders")])
    with pytest.raises(AdapterError, match="needs amqps://"):
        rabbit.adapter(f"amqp://{login}@127.0.0.1:{port}", fail_fast=True).open([consumer_of("orders")])


# Without the client


def test_without_pika_the_error_is_the_line_to_type(monkeypatch):
    real = builtins.__import__

    def without_pika(name, *rest):
        if name == "pika" or name.startswith("pika."):
            raise ImportError(name)
        return real(name, *rest)

    for name in list(sys.modules):
        if name.startswith(("pika", "idempotent.adapters.rabbitmq")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without_pika)
    with pytest.raises(ImportError, match=r'pip install "idempotent-consumer\[rabbitmq\]"'):
        adapter_from_url("amqp://localhost")


def test_a_host_that_does_not_answer_is_given_up_for_the_next(rabbit):
    parts = urlsplit(rabbit.url)
    login = parts.netloc.rpartition("@")[0]
    adapter = rabbit.adapter(f"amqp://{login}@127.0.0.1:1,127.0.0.1:{parts.port}{parts.path}")
    adapter.open([])
    deadline = time.monotonic() + 60
    while not adapter.connected:
        assert time.monotonic() < deadline
        adapter.receive(1, 0.1)
    adapter.close()
