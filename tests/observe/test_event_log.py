"""An event under any handler of Python's `logging`, without a formatter of this library."""

import io
import logging
import subprocess
import sys

import pytest

from idempotent import Message, Registry
from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.logs import EventLog
from tests.support.working import run_until

log = EventLog("idempotent.tests")
PROGRAM = """
from idempotent import Message, Registry, Worker
from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker

registry, broker = Registry(), MemoryBroker()

@registry.consumer("orders", checker=MemoryChecker(), max_attempts=1)
def pay(message):
    raise ValueError("no account at amqp://me:s3cret@host")

broker.publish(Message("orders", b"the body", id="7"))
Worker(registry, MemoryAdapter(broker, until_empty=True), redact=True).run()
"""


@pytest.fixture
def written():
    """What a handler writes that was set up without this library's formatters."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(module)s.%(funcName)s: %(message)s"))
    log.logger.addHandler(handler)
    yield stream
    log.logger.removeHandler(handler)


def test_an_event_says_whose_and_why_first(written):
    log.warning(
        "message_dead", extra={"attempt": 3, "error": "ValueError: no", "key": "a:b:7", "consumer": "a:b"}
    )
    log.info("not_shown", extra={"attempt": 1})
    log.error("lost", extra={"consumer": None, "key": None})
    here = "test_event_log.test_an_event_says_whose_and_why_first"
    assert written.getvalue().splitlines() == [
        f"{here}: message_dead consumer='a:b' key='a:b:7' error='ValueError: no' attempt=3",
        f"{here}: lost",
    ]


def test_an_event_stays_one_line_and_has_no_password(written):
    log.warning(
        "broker_unreachable", extra={"error": "line\n2", "broker": "amqp://me:s3cret@host", "of": "100%s"}
    )
    (line,) = written.getvalue().splitlines()
    assert line.endswith(r"broker_unreachable error='line\n2' broker='amqp://me:***@host' of='100%s'")


@pytest.mark.parametrize("url", ["amqp://me:s3cret@host", "x://host/db?password=s3cret&sslmode=require"])
@pytest.mark.parametrize("within", [lambda url: url, lambda url: [url], lambda url: {"to": (url, 1)}])
def test_no_attribute_has_a_password(written, caplog, url, within):
    log.warning("broker_unreachable", extra={"broker": within(url), "attempt": 3})
    (record,) = caplog.records
    assert "s3cret" not in written.getvalue() + repr(vars(record))
    assert "***" in repr(record.broker)
    assert record.attempt == 3


def test_a_huge_id_is_cut(written, caplog):
    log.warning("message_dead", extra={"message_id": "1" * 1_000_000})
    assert len(written.getvalue()) < 11_000
    assert len(caplog.records[0].message_id) == 10_000


def test_what_groups_records_by_their_text_finds_one_for_each_event(caplog):
    for key in ("1", "2"):
        log.warning("message_dead", extra={"key": key, "event_id": None})
    first, second = caplog.records
    assert first.msg == second.msg == "message_dead key=%s"
    assert [(record.event, record.key) for record in caplog.records] == [
        ("message_dead", "1"),
        ("message_dead", "2"),
    ]


def test_a_program_without_any_set_up_of_logging_learns_what_failed_and_why():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    (line,) = done.stderr.splitlines()
    assert line.startswith("message_dead consumer='orders:default' key='orders:default:7' error='ValueError'")
    assert "body" not in line


def test_a_traceback_is_written_as_before(written, caplog):
    registry, broker = Registry(), MemoryBroker()

    @registry.consumer("orders", checker=MemoryChecker(), max_attempts=1)
    def pay(message):
        raise ValueError("no account")

    broker.publish(Message("orders", id="7"))
    run_until(registry, MemoryAdapter(broker), lambda: "message_dead" in caplog.text)
    assert "error='ValueError: no account'" in caplog.text
    assert "Traceback" in caplog.text
