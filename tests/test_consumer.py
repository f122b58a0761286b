"""What `@consumer` promises about one message, over the reference checker."""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

import pytest

from idempotent import Action, Backoff, Outcome, Registry, current_claim
from idempotent.checkers import MemoryChecker
from idempotent.errors import DeadKeyError, FingerprintMismatchError, MissingKeyError, UndecodableMessageError
from idempotent.observe import Event, counters
from tests.support.consumers import OutOfStock, Ran, consumer_of, message


class AlreadyShipped(Exception):
    pass


def test_a_fresh_message_runs_and_its_duplicate_does_not():
    ran = Ran()
    consumer = consumer_of(ran)
    first, second = consumer(message()), consumer(message())
    assert (first.outcome, first.action, first.value) == (Outcome.PROCESSED, Action.ACK, 1)
    assert (second.outcome, second.action, second.value) == (Outcome.DUPLICATE, Action.ACK, None)
    assert len(ran.messages) == 1


def test_two_groups_of_one_subject_each_run_the_message_once():
    checker, ran = MemoryChecker(), Ran()
    billing = consumer_of(ran, checker=checker, group="billing")
    shipping = consumer_of(ran, checker=checker, group="shipping")
    assert [c(message()).outcome for c in (billing, shipping, billing)] == [
        Outcome.PROCESSED,
        Outcome.PROCESSED,
        Outcome.DUPLICATE,
    ]


def test_the_handlers_exception_propagates_after_its_key_was_released():
    ran = Ran(OutOfStock("none left"))
    consumer = consumer_of(ran)
    with pytest.raises(OutOfStock, match="none left"):
        consumer(message())
    assert consumer(message()).outcome is Outcome.PROCESSED


def test_process_keeps_the_exception_in_the_result():
    consumer = consumer_of(Ran(OutOfStock("none left")), backoff=Backoff(initial_s=3))
    result = consumer.process(message())
    assert (result.outcome, result.action, result.retry_after_s) == (Outcome.FAILED, Action.DELAY, 3)
    assert isinstance(result.error, OutOfStock)


def test_the_backoff_grows_with_the_attempts_and_then_the_message_is_dead():
    consumer = consumer_of(Ran(*[OutOfStock()] * 9), max_attempts=4, backoff=Backoff(1, 3))
    results = [consumer.process(message()) for _ in range(5)]
    assert [r.retry_after_s for r in results] == [1, 2, 3, None, None]
    assert [r.outcome for r in results] == [Outcome.FAILED] * 3 + [Outcome.DEAD] * 2
    assert isinstance(results[3].error, OutOfStock)
    assert isinstance(results[4].error, DeadKeyError)
    assert "OutOfStock" in str(results[4].error)


def test_a_dead_message_is_not_raised_again_when_called():
    consumer = consumer_of(Ran(OutOfStock()), max_attempts=1)
    with pytest.raises(OutOfStock):
        consumer(message())
    assert consumer(message()).outcome is Outcome.DEAD


def refused():
    """An exception that is final, raised from one that may pass."""
    error = ValueError("the card was refused")
    error.__cause__ = OSError("the answer was 402")
    return error


@pytest.mark.parametrize(
    ("error", "options", "outcome"),
    [
        (AlreadyShipped(), {"idempotent_for": AlreadyShipped}, Outcome.IGNORED),
        (OutOfStock(), {"retry_for": OutOfStock}, Outcome.FAILED),
        (OutOfStock(), {"retry_for": (KeyError, OutOfStock)}, Outcome.FAILED),
        (AlreadyShipped(), {"retry_for": OutOfStock}, Outcome.DEAD),
        (AlreadyShipped(), {"retry_for": Exception, "idempotent_for": (AlreadyShipped,)}, Outcome.IGNORED),
        (ExceptionGroup("two", [OutOfStock()]), {"retry_for": OutOfStock}, Outcome.FAILED),
        (OutOfStock(), {"dead_for": OutOfStock}, Outcome.DEAD),
        (OutOfStock(), {"dead_for": OutOfStock, "retry_for": OutOfStock}, Outcome.DEAD),
        (OutOfStock(), {"dead_for": Exception, "idempotent_for": OutOfStock}, Outcome.IGNORED),
        (refused(), {"retry_for": OSError}, Outcome.FAILED),
        (refused(), {"retry_for": OSError, "dead_for": ValueError}, Outcome.DEAD),
        (ExceptionGroup("two", [OutOfStock(), refused()]), {"dead_for": ValueError}, Outcome.DEAD),
    ],
)
def test_exceptions_are_classified(error, options, outcome):
    assert consumer_of(Ran(error), **options).process(message()).outcome is outcome


def test_an_exception_is_classified_by_what_it_was_raised_from():
    wrapped = RuntimeError("processor message error")
    wrapped.__cause__ = ValueError("inner")
    wrapped.__cause__.__cause__ = AlreadyShipped()
    consumer = consumer_of(Ran(wrapped), idempotent_for=AlreadyShipped)
    assert consumer.process(message()).outcome is Outcome.IGNORED
    assert consumer.process(message()).outcome is Outcome.DUPLICATE


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit])
def test_what_is_no_exception_frees_the_key_propagates_and_counts_nothing(stop):
    ran = Ran(stop())
    consumer = consumer_of(ran, max_attempts=1)
    with pytest.raises(stop):
        consumer.process(message())
    assert consumer.process(message()).outcome is Outcome.PROCESSED


@pytest.mark.parametrize("missing", [None, "", b""])
def test_a_message_without_id_is_rejected_and_does_not_run(missing):
    ran = Ran()
    result = consumer_of(ran).process(message(missing))
    assert (result.outcome, result.action) == (Outcome.REJECTED, Action.DEAD_LETTER)
    assert isinstance(result.error, MissingKeyError)
    assert ran.messages == []


def test_a_message_without_id_runs_unprotected_where_the_consumer_says_so():
    ran = Ran()
    consumer = consumer_of(ran, on_missing_key="process", group="unkeyed")
    assert [consumer(message(None)).outcome for _ in range(2)] == [Outcome.PROCESSED] * 2
    assert counters.snapshot()[consumer.name, Event.RAN_WITHOUT_KEY] == 2


def test_the_key_expression_names_the_message():
    ran = Ran()
    consumer = consumer_of(ran, key=lambda m: m.headers["payment-id"])
    paid = {"payment-id": "p1"}
    assert consumer(message("a", headers=paid)).outcome is Outcome.PROCESSED
    assert consumer(message("b", headers=paid)).outcome is Outcome.DUPLICATE
    assert isinstance(consumer(message("c")).error, MissingKeyError)


def test_a_key_expression_that_fails_rejects_the_message_with_its_cause():
    consumer = consumer_of(Ran(), key=lambda m: m.json()["id"])
    result = consumer.process(message(body=b"not json"))
    assert result.outcome is Outcome.REJECTED
    assert isinstance(result.error, UndecodableMessageError)
    assert isinstance(result.error.__cause__, ValueError)
    assert "not json" not in str(result.error), "bodies stay out of errors"


@pytest.mark.parametrize(
    "key", [False, True, [], {}, (), 0.0, 1.5, object(), pytest.param(1 << 20_000, id="huge")]
)
@pytest.mark.parametrize("on_missing_key", ["reject", "process"])
def test_a_key_of_another_type_rejects_the_message_and_never_counts_as_missing(key, on_missing_key):
    ran = Ran()
    consumer = consumer_of(ran, key=lambda m: key, on_missing_key=on_missing_key)
    for result in (consumer.process(message()), *consumer.process_many([message(), message()])):
        assert result.outcome is Outcome.REJECTED
        assert f"a key must be str, bytes, int or UUID, not {type(key).__name__}" in str(result.error)
    assert ran.messages == []


@pytest.mark.parametrize("key", [0, 7, -1, 1 << 64])
def test_an_int_is_the_key_of_its_digits(key):
    consumer = consumer_of(Ran(), key=lambda m: m.raw, on_missing_key="process")
    assert consumer(message(raw=key)).outcome is Outcome.PROCESSED
    assert consumer(message(raw=str(key))).outcome is Outcome.DUPLICATE
    assert str(consumer.key_of(str(key))) == str(consumer.key_of(key)) == f"orders:default:{key}"


def test_a_uuid_is_the_key_of_its_text():
    number = UUID("0190B3F0-1C2D-7E3F-8A4B-5C6D7E8F9A0B")
    for consumer in (
        consumer_of(Ran(), key=lambda m: m.raw),
        consumer_of(Ran(), fingerprint=lambda m: m.raw),
    ):
        assert consumer(message(number, raw=number)).outcome is Outcome.PROCESSED
        assert consumer(message(str(number), raw=str(number))).outcome is Outcome.DUPLICATE
        assert str(consumer.key_of(number)) == "orders:default:0190b3f0-1c2d-7e3f-8a4b-5c6d7e8f9a0b"


def test_an_int_is_a_message_id_and_a_fingerprint_too():
    consumer = consumer_of(Ran(), fingerprint=lambda m: m.raw)
    assert consumer(message(0, raw=0)).outcome is Outcome.PROCESSED
    assert consumer(message("0", raw=0)).outcome is Outcome.DUPLICATE
    assert consumer(message("0", raw=1)).outcome is Outcome.REJECTED


@pytest.mark.parametrize("many", [iter, tuple, lambda messages: (each for each in messages), dict.fromkeys])
def test_any_iterable_of_messages_is_processed_in_its_order(many):
    ran = Ran()
    results = consumer_of(ran).process_many(many([message("1"), message("2"), message("3")]))
    assert [result.outcome for result in results] == [Outcome.PROCESSED] * 3
    assert [each.id for each in ran.messages] == ["1", "2", "3"]


@pytest.mark.parametrize("wrong", [b"{}", "orders", None, {"id": "1"}])
def test_what_is_no_message_is_refused_before_anything_runs(wrong):
    ran = Ran()
    consumer = consumer_of(ran)
    for use in (lambda: consumer(wrong), lambda: consumer.process_many([message(), wrong])):
        with pytest.raises(TypeError, match="a consumer takes Messages"):
            use()
    assert ran.messages == []
    assert not consumer.checker.entries


def test_text_and_its_utf8_bytes_are_one_key():
    consumer = consumer_of(Ran())
    assert consumer(message("é")).outcome is Outcome.PROCESSED
    assert consumer(message("é".encode())).outcome is Outcome.DUPLICATE


def test_other_content_under_the_same_key_is_rejected_with_both_named():
    consumer = consumer_of(Ran(), fingerprint=lambda m: m.body)
    assert consumer(message(body=b"10 EUR")).outcome is Outcome.PROCESSED
    assert consumer(message(body=b"10 EUR")).outcome is Outcome.DUPLICATE
    result = consumer(message(body=b"99 EUR"))
    assert (result.outcome, result.action) == (Outcome.REJECTED, Action.DEAD_LETTER)
    assert isinstance(result.error, FingerprintMismatchError)
    request, other = (consumer.binding.requests.of(message(body=b)) for b in (b"10 EUR", b"99 EUR"))
    assert request.fingerprint.hex() in str(result.error)
    assert other.fingerprint.hex() in str(result.error)


@pytest.mark.parametrize("value", [0, None, False, "", [], {"total": 0}])
def test_a_stored_result_comes_back_as_it_was_even_when_it_is_falsy(value):
    checker = MemoryChecker()

    @Registry().consumer("orders", checker=checker, store_result=True)
    def handle(message):
        return value

    assert handle(message()).value == value
    again = handle(message())
    assert (again.outcome, again.value) == (Outcome.DUPLICATE, value)
    assert type(again.value) is type(value)


@pytest.mark.parametrize("value", [object(), "x" * 1_000_001])
def test_a_result_that_cannot_be_stored_is_no_failure(value, caplog):
    ran = []

    @Registry().consumer("orders", checker=MemoryChecker(), store_result=True)
    def handle(message):
        ran.append(message)
        return value

    assert handle(message()).outcome is Outcome.PROCESSED
    assert (handle(message()).outcome, len(ran)) == (Outcome.DUPLICATE, 1)
    assert "result_not_stored" in caplog.text


def test_current_claim_is_the_running_handlers_and_nobody_elses():
    seen = []
    consumer = consumer_of(lambda m: seen.append(current_claim()))
    consumer(message("42"))
    assert (str(seen[0].key), seen[0].fence > 0, len(seen[0].owner)) == ("orders:default:42", True, 16)
    with pytest.raises(LookupError):
        current_claim()


def test_the_kill_switch_runs_duplicates_and_says_so(monkeypatch, caplog):
    monkeypatch.setenv("IDEMPOTENT_DISABLED", "other:x, orders:switched")
    ran = Ran()
    consumer = consumer_of(ran, group="switched")
    assert [consumer(message()).outcome for _ in range(2)] == [Outcome.PROCESSED] * 2
    assert counters.snapshot()[consumer.name, Event.RAN_DISABLED] == 1
    assert "consumer_disabled" in caplog.text
    monkeypatch.setenv("IDEMPOTENT_DISABLED", "")
    assert (
        consumer_of(ran, checker=consumer.checker, group="switched")(message()).outcome is Outcome.DUPLICATE
    ), "keys were recorded meanwhile"


def test_the_wrapped_handler_stays_within_reach():
    ran = Ran()
    consumer = consumer_of(ran)
    consumer.__wrapped__(message())
    consumer.__wrapped__(message())
    assert len(ran.messages) == 2
    assert consumer.__name__ == "handle"


def test_bodies_and_headers_are_not_logged(caplog):
    caplog.set_level(logging.DEBUG)
    consumer = consumer_of(Ran(OutOfStock("x")), on_missing_key="process")
    consumer.process(message(None, body=b"card 4111", headers={"token": "hunter2"}))
    records = "".join(str(record.__dict__) for record in caplog.records)
    assert records
    assert "4111" not in records
    assert "hunter2" not in records
