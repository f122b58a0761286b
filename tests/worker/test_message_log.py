"""What the log says of a message that did not end well."""

import logging
import re
import threading
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from idempotent import Message, Outcome, Registry, Worker
from idempotent.adapters import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.claims import ClaimRequest
from idempotent.errors import DoomedTransactionError, StoreUnavailableError
from idempotent.policy import Backoff
from idempotent.worker.message_log import Traces
from tests.support.logs import logged
from tests.worker.running import SUBJECT, Running, consumer_of, emptying, publish, until

SOON = Backoff(initial_s=0.01, maximum_s=0.01)


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    return logged(caplog, event)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("batch_size", [1, 5])
def test_at_debug_the_whole_life_of_each_message_is_in_the_log(
    registry: Registry,
    broker: MemoryBroker,
    caplog: pytest.LogCaptureFixture,
    batch_size: int,
    is_async: bool,
) -> None:
    fails = ["late"]

    def handle(message: Message) -> None:
        if message.id in fails:
            fails.remove(message.id)
            raise ValueError("not yet")

    consumer_of(registry, handle, is_async=is_async, backoff=SOON)
    publish(broker, "fine", "late", "fine")
    caplog.set_level(logging.DEBUG, "idempotent")
    emptying(registry, broker, batch_size=batch_size).run()

    def life(key: str) -> list[tuple[str, str | None]]:
        return [
            (record.event, vars(record).get("outcome"))
            for record in caplog.records
            if vars(record).get("key") == f"orders:default:{key}"
        ]

    received = ("message_received", None)
    assert sorted(life("fine")) == [
        received,
        received,
        ("message_settled", "duplicate"),
        ("message_settled", "processed"),
    ]
    assert life("late") == [
        received,
        ("message_failed", "failed"),
        ("message_settled", "failed"),
        received,
        ("message_settled", "processed"),
    ]


def test_at_debug_what_a_worker_that_stops_gives_back_is_in_the_log(
    registry: Registry, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    goes_on = threading.Event()
    consumer_of(registry, lambda _: goes_on.wait(60))
    publish(broker, "1", "2")
    caplog.set_level(logging.DEBUG, "idempotent")
    running = Running(Worker(registry, MemoryAdapter(broker), gc_interval_s=None))
    until(lambda: len(lines(caplog, "message_received")) == 2)
    running.worker.stop()
    until(lambda: lines(caplog, "message_returned"))
    goes_on.set()
    running.join()
    (returned,) = lines(caplog, "message_returned")
    (settled,) = lines(caplog, "message_settled")
    assert (returned.message_id, settled.message_id) == ("2", "1")


def test_above_debug_no_message_pays_for_its_lines(
    registry: Registry, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []
    consumer_of(registry, lambda _: None, key=lambda message: asked.append(message.id) or message.id)
    publish(broker, "1", "2")
    caplog.set_level(logging.INFO, "idempotent")
    emptying(registry, broker).run()
    assert asked == ["1", "2"]


@pytest.mark.parametrize("batch_size", [1, 5])
def test_a_failure_names_the_message_the_attempt_and_the_exception(
    registry: Registry, broker: MemoryBroker, caplog: pytest.LogCaptureFixture, batch_size: int
) -> None:
    @registry.consumer(SUBJECT, group="billing", checker=MemoryChecker(), max_attempts=3, backoff=SOON)
    def handle(message: Message) -> None:
        if message.id == "a-1":
            raise ValueError("no such account")

    publish(broker, "a-1", "a-2")
    emptying(registry, broker, batch_size=batch_size).run()
    failed, again = lines(caplog, "message_failed")
    (dead,) = lines(caplog, "message_dead")
    for number, line in enumerate((failed, again, dead), 1):
        data = vars(line)
        assert data["consumer"] == "orders:billing"
        assert data["key"] == "orders:billing:a-1"
        assert data["message_id"] == "a-1"
        assert data["position"]
        assert data["attempt"] == number
        assert data["error"] == "ValueError: no such account"
        if line is again:
            assert not line.exc_info, "the first line has it, and the last"
        else:
            assert line.exc_info
            assert line.exc_info[0] is ValueError
            assert line.exc_info[2], "the traceback"


def test_redacted_lines_have_neither_text_nor_traceback_of_a_handler_s_exception(
    registry: Registry, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    @registry.consumer(SUBJECT, checker=MemoryChecker(), retry_for=())
    def handle(message: Message) -> None:
        if message.id == "doomed":  # as the checker raises it, with the answer of the database
            raise DoomedTransactionError(f"the database undid the transaction: {message.body!r}")
        raise ValueError(message.body)

    broker.publish(Message(SUBJECT, b"credit card", id="a", headers={"token": "credit card"}))
    broker.publish(Message(SUBJECT, b"credit card", id="doomed"))
    broker.publish(Message(SUBJECT, b"credit card"))
    with caplog.at_level(logging.DEBUG):
        emptying(registry, broker, redact=True).run()
    handled, doomed, rejected = lines(caplog, "message_dead")
    assert vars(handled)["error"] == "ValueError"
    assert vars(doomed)["error"] == "DoomedTransactionError"
    assert not handled.exc_info
    assert "the message has no message id" in vars(rejected)["error"], "our own errors are logged in full"
    assert "credit card" not in caplog.text
    assert not [record for record in caplog.records if "credit card" in str(record.__dict__)]


@pytest.mark.parametrize("depth", [300, 20_000])
def test_groups_nested_deeper_than_pythons_stack_end_no_worker(
    registry: Registry, broker: MemoryBroker, caplog: pytest.LogCaptureFixture, depth: int
) -> None:
    @registry.consumer(SUBJECT, checker=MemoryChecker(), max_attempts=2, backoff=SOON)
    def handle(message: Message) -> None:
        error: Exception = ValueError("no such account")
        for _ in range(depth if message.id == "deep" else 0):
            error = ExceptionGroup("tasks", [error])
        raise error

    publish(broker, "deep", "flat")
    summary = emptying(registry, broker).run()
    assert (summary[Outcome.FAILED], summary[Outcome.DEAD]) == (2, 2)
    assert not lines(caplog, "handler_crashed")


def as_cause(error: Exception) -> None:
    raise RuntimeError("not charged") from error


def in_its_place(_: Exception) -> None:
    raise RuntimeError("not charged")


def in_a_group(error: Exception) -> None:
    raise ExceptionGroup("not charged", [ValueError("declined"), error]) from None


@pytest.mark.parametrize("raise_on", [as_cause, in_its_place, in_a_group])
def test_no_traceback_shows_the_parameters_of_a_statement(
    registry: Registry,
    broker: MemoryBroker,
    caplog: pytest.LogCaptureFixture,
    raise_on: Callable[[Exception], None],
) -> None:
    engine = sa.create_engine("sqlite://")

    @registry.consumer(SUBJECT, checker=MemoryChecker(), retry_for=())
    def handle(message: Message) -> None:
        with engine.connect() as connection:
            try:
                connection.execute(
                    sa.text("INSERT INTO cards VALUES (:card)"), {"card": message.body.decode()}
                )
            except sa.exc.OperationalError as error:
                raise_on(error)

    broker.publish(Message(SUBJECT, b"4111 1111", id="a-1"))
    emptying(registry, broker).run()
    assert "no such table: cards" in caplog.text
    assert "4111 1111" not in caplog.text
    engine.dispose()


def test_what_is_normal_is_no_warning(
    registry: Registry, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    registry.consumer(SUBJECT, checker=MemoryChecker())(lambda _: None)
    publish(broker, *range(10), *range(10))
    emptying(registry, broker).run()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_message_that_waits_again_and_again_is_a_warning_with_the_reason(
    registry: Registry,
    broker: MemoryBroker,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("idempotent.processing.results.STORE_RETRY_S", 0.02)

    class Refuses(MemoryChecker):
        refuses = True

        def _claim(self, request: ClaimRequest):
            if self.refuses and "a-1" in str(request.key):
                raise StoreUnavailableError("character set latin1 cannot store it")
            return super()._claim(request)

    checker = Refuses()
    registry.consumer(SUBJECT, checker=checker)(lambda _: None)
    publish(broker, "a-1", "a-2")
    running = Running(emptying(registry, broker))
    until(lambda: [line for line in lines(caplog, "message_waits") if line.levelno == logging.WARNING])
    checker.refuses = False
    running.join()
    warned = [line for line in lines(caplog, "message_waits") if line.levelno == logging.WARNING]
    assert len(warned) == 1
    assert vars(warned[0])["message_id"] == "a-1"
    assert "cannot store it" in vars(warned[0])["error"]
    assert vars(warned[0])["reason"] == "the store did not answer, or refused: see error"


def test_a_crowd_that_waits_for_its_store_is_a_line_and_a_number(
    registry: Registry,
    broker: MemoryBroker,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("idempotent.processing.results.STORE_RETRY_S", 0.02)
    caplog.set_level(logging.INFO)
    claims = iter(range(300))

    class Away(MemoryChecker):
        def _claim(self, request: ClaimRequest):
            if next(claims, None) is not None:
                raise StoreUnavailableError("connection refused")
            return super()._claim(request)

    registry.consumer(SUBJECT, checker=Away())(lambda _: None)
    publish(broker, *map(str, range(30)))
    emptying(registry, broker).run()
    waits = lines(caplog, "message_waits")
    assert [line.levelno for line in waits] == [logging.INFO, logging.WARNING]
    assert [vars(line)["more"] for line in waits] == [0, 0]


def test_a_message_whose_key_is_held_for_a_long_time_is_a_warning_now_and_then(
    registry: Registry,
    broker: MemoryBroker,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("idempotent.worker.message_log._LONG_S", 0.5)
    caplog.set_level(logging.INFO)
    checker = MemoryChecker()
    consumer = registry.consumer(SUBJECT, checker=checker)(lambda _: None)
    message = Message(SUBJECT, id="a-1")
    hanging = checker.protocol.claim(ClaimRequest(consumer.key_in(message))).claim
    publish(broker, "a-1")
    running = Running(Worker(registry, MemoryAdapter(broker), gc_interval_s=None))

    def warnings() -> list[logging.LogRecord]:
        return [line for line in lines(caplog, "message_waits") if line.levelno == logging.WARNING]

    until(lambda: len(warnings()) == 2)
    checker.protocol.release(hanging)
    running.worker.stop()
    running.join()
    data = [vars(line) for line in warnings()]
    assert all(line["outcome"] == "in_progress" for line in data)
    assert {line["reason"] for line in data} == {"another delivery has its key"}
    assert 0.5 <= data[0]["waited_s"] < data[1]["waited_s"]
    assert len(data) < len(lines(caplog, "message_waits")), "not each look"


@pytest.mark.parametrize("backoff_s", [0.5, 7.0])
def test_a_message_that_waits_for_the_backoff_of_another_delivery_says_so(
    registry: Registry, broker: MemoryBroker, caplog: pytest.LogCaptureFixture, backoff_s: float
) -> None:
    caplog.set_level(logging.INFO)
    backoff = Backoff(initial_s=backoff_s, maximum_s=backoff_s)

    @registry.consumer(SUBJECT, checker=MemoryChecker(), backoff=backoff)
    def handle(_: Message) -> None:
        raise ValueError("not now")

    publish(broker, "a", "a")
    running = Running(Worker(registry, MemoryAdapter(broker), gc_interval_s=None, drain_timeout_s=0.1))
    until(lambda: lines(caplog, "message_waits"))
    running.worker.stop()
    running.join()
    reason = vars(lines(caplog, "message_waits")[0])["reason"]
    assert re.fullmatch(r"an earlier delivery failed, and its backoff ends in \d\.\d s", reason)


def test_what_ends_the_worker_is_logged_with_its_traceback(
    registry: Registry, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    @registry.consumer(SUBJECT, checker=MemoryChecker())
    def handle(_: Message) -> None:
        raise SystemExit("told to")

    publish(broker, "a-1")
    with pytest.raises(SystemExit):
        emptying(registry, broker).run()
    (line,) = lines(caplog, "handler_crashed")
    assert vars(line)["message_id"] == "a-1"
    assert vars(line)["error"] == "SystemExit: told to"
    assert line.exc_info


def test_an_exception_whose_text_fails_costs_only_its_text(
    registry: Registry, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    @registry.consumer(SUBJECT, checker=MemoryChecker(), retry_for=())
    def handle(_: Message) -> None:
        raise Odd

    publish(broker, "a-1")
    done = threading.Event()
    emptying(registry, broker, on_result=lambda _m, _r: done.set()).run()
    assert done.is_set()
    (line,) = lines(caplog, "message_dead")
    assert vars(line)["error"] == "Odd: (its message cannot be shown)"
    (letter,) = broker.dead_letters(SUBJECT)
    assert letter.reason == "Odd: (its message cannot be shown)"


def test_a_fault_that_many_messages_meet_is_shown_once_a_minute(
    registry: Registry, broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    @registry.consumer(SUBJECT, checker=MemoryChecker(), max_attempts=2, backoff=SOON)
    def handle(message: Message) -> None:
        if message.id == "odd":
            raise KeyError(message.id)
        raise ValueError(f"no account of {message.id}")

    publish(broker, *range(20), "odd")
    emptying(registry, broker).run()
    for event in ("message_failed", "message_dead"):
        shown = [line.exc_info[0] for line in lines(caplog, event) if line.exc_info]
        assert sorted(shown, key=str) == [KeyError, ValueError]
    assert len(lines(caplog, "message_dead")) == 21


def test_after_a_minute_the_next_traceback_says_how_many_lines_had_none() -> None:
    now = [0.0]
    traces = Traces(clock=lambda: now[0])

    def line() -> int | None:
        try:
            raise ValueError("no such account")  # noqa: TRY301
        except ValueError as error:
            return traces.take("message_failed", "orders:billing", error)

    assert [line() for _ in range(3)] == [0, None, None]
    now[0] += 61.0
    assert line() == 2
