"""What a call of an `@idempotent` function does, over every checker."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from idempotent import (
    DeadKeyError,
    FingerprintMismatchError,
    InProgressError,
    MissingKeyError,
    ResultNotStoredError,
    StoreError,
    current_claim,
)
from idempotent.errors import StoreUnavailableError
from tests.functions.kinds import Kind
from tests.support.hooks import answering, unreachable


def test_it_runs_once_and_gives_every_later_call_its_result(kind: Kind) -> None:
    ran = []

    def charge(order: str, amount: int = 1) -> dict[str, int]:
        ran.append((order, amount, current_claim().key.text))
        return {"amount": amount}

    call = kind.protected(charge)
    assert [call("a"), call(order="a"), call("a", 5), call("b", amount=2)] == [{"amount": 1}] * 3 + [
        {"amount": 2}
    ]
    assert ran == [("a", 1, "charge:tests:a"), ("b", 2, "charge:tests:b")]


def test_a_call_that_does_not_run_is_logged_for_who_asks(
    kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    call = kind.protected(lambda order: order)
    with caplog.at_level(logging.DEBUG, "idempotent"):
        call("a")
        assert not [line for line in caplog.records if getattr(line, "event", "") == "duplicate_dropped"]
        call("a")
    (line,) = [line for line in caplog.records if getattr(line, "event", "") == "duplicate_dropped"]
    assert (line.levelname, line.__dict__["key"]) == ("DEBUG", "charge:tests:a")


def test_a_result_of_none_is_a_result(kind: Kind) -> None:
    ran = []

    def charge(order: str) -> None:
        ran.append(order)

    call = kind.protected(charge)
    assert [call("a"), call("a")] == [None, None]
    assert ran == ["a"]


def test_an_exception_is_the_functions_own_and_the_key_is_free(kind: Kind) -> None:
    error = ConnectionError("the bank is away")
    errors = [error] * 7

    def charge(order: str) -> str:
        if errors:
            raise errors.pop()
        return order

    call = kind.protected(charge)
    for _ in range(7):
        with pytest.raises(ConnectionError) as raised:
            call("a")
        assert raised.value is error
    assert [call("a"), call("a")] == ["a", "a"]


def test_an_exception_for_which_the_key_is_dead_is_raised_once(kind: Kind) -> None:
    def charge(order: str) -> str:
        raise ValueError("refused") from OSError("the card's bank")

    call = kind.protected(charge, dead_for=ValueError)
    with pytest.raises(ValueError, match="refused"):
        call("a")
    with pytest.raises(DeadKeyError, match="refused"):
        call("a")


def test_so_many_failed_calls_and_the_key_is_dead(kind: Kind) -> None:
    def charge(order: str) -> str:
        raise ValueError("no")

    call = kind.protected(charge, max_attempts=2)
    for wanted in (ValueError, ValueError, DeadKeyError):
        with pytest.raises(wanted):
            call("a")


@pytest.mark.parametrize("key", ["", None])
def test_a_call_without_a_key_is_refused(kind: Kind, key: object) -> None:
    call = kind.protected(lambda order: pytest.fail("it ran"))
    with pytest.raises(MissingKeyError):
        call(key)


def test_other_arguments_under_one_key_are_refused(kind: Kind) -> None:
    def charge(order: str, amount: int) -> int:
        return amount

    call = kind.protected(charge, fingerprint=lambda order, amount: amount)
    assert call("a", 5) == 5
    assert call("a", 5) == 5
    with pytest.raises(FingerprintMismatchError):
        call("a", 6)


def test_a_result_that_is_not_stored_is_an_error_for_later_calls_and_nothing_runs_again(kind: Kind) -> None:
    ran = []

    def charge(order: str):  # type: ignore[no-untyped-def]
        ran.append(order)
        return (1, 2)

    call = kind.protected(charge)
    assert call("a") == (1, 2)
    for _ in range(2):
        with pytest.raises(ResultNotStoredError, match="charge:tests:a ran before"):
            call("a")
    assert ran == ["a"]


def test_a_store_that_does_not_answer_runs_nothing(kind: Kind) -> None:
    call = kind.protected(lambda order: pytest.fail("it ran"))
    hooks = {"_claim": unreachable, "_claim_many": unreachable}
    with answering(kind.checker, **hooks), pytest.raises(StoreError, match="gone"):
        call("a")


def test_a_call_beside_another_one_says_when_to_call_again(kind: Kind) -> None:
    entered, go = threading.Event(), threading.Event()

    def charge(order: str) -> str:
        entered.set()
        assert go.wait(30)
        return order

    call = kind.protected(charge)
    first = threading.Thread(target=call, args=("a",))
    first.start()
    try:
        assert entered.wait(30)
        if kind.name == "sqlite-transactional":
            return  # its one writer has the file
        with pytest.raises(InProgressError) as raised:
            call("a")
        assert 0 < raised.value.retry_after_s <= 1
    finally:
        go.set()
        first.join(30)
    assert call("a") == "a"


def test_a_call_that_waits_gets_the_result_of_the_one_before(kind: Kind) -> None:
    ran, answers = [], []
    begin = threading.Barrier(5)

    def charge(order: str) -> int:
        ran.append(order)
        time.sleep(0.2)
        return len(ran)

    call = kind.protected(charge, wait_s=30)

    def deliver() -> None:
        begin.wait(30)
        answers.append(call("a"))

    threads = [threading.Thread(target=deliver) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == [1] * 5
    assert ran == ["a"]


def test_a_completion_without_an_answer_is_an_error_and_no_second_run(kind: Kind) -> None:
    if kind.is_transactional:
        pytest.skip("there the COMMIT is asked about: tests/guarantees/crash")
    ran = []

    def charge(order: str) -> str:
        ran.append(order)
        return order

    def lost(*_: object) -> None:
        raise StoreUnavailableError("lost")

    call = kind.protected(charge)
    with answering(kind.checker, _complete=lost, _complete_many=lost), pytest.raises(StoreError):
        call("a")
    deadline = time.monotonic() + 30
    while True:
        try:
            assert call("a") == "a"
            break
        except InProgressError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert ran == ["a"]


class Limit(BaseException):
    """As a framework raises in the thread of a task that takes too long."""


class Interrupted:
    name = "interrupted/1"

    def encode(self, value: object) -> bytes:
        raise Limit

    def decode(self, data: bytes) -> object:
        raise AssertionError("nothing was stored")


def test_what_interrupts_a_call_after_its_function_has_returned_repeats_no_effect(kind: Kind) -> None:
    if kind.is_transactional:
        pytest.skip("its effect is rolled back")
    ran = []

    def charge(order: str) -> str:
        ran.append(order)
        return order

    call = kind.protected(charge, codec=Interrupted(), wait_s=60)
    with pytest.raises(Limit):
        call("a")
    with pytest.raises(ResultNotStoredError):
        call("a")
    assert ran == ["a"]


def test_calls_that_meet_at_a_key_that_is_done_all_have_its_result(kind: Kind) -> None:
    if kind.is_async:
        pytest.skip("here each call has a loop of its own, and connects anew")
    call = kind.protected(lambda order: order)
    assert call("a") == "a"
    begin, answers = threading.Barrier(8), []

    def look() -> None:
        begin.wait(30)
        try:
            answers.append(call("a"))
        except Exception as error:
            answers.append(repr(error))

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == ["a"] * 8
