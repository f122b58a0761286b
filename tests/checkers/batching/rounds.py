"""A claim that is held in the store, so that later calls have to wait for the next round."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from idempotent.claims import ClaimRequest, Lapsed
from idempotent.keys import KeySpace
from tests.support.hooks import answering

SPACE = KeySpace("orders", "billing")
WITHIN_S = 30.0


def request(name: str, **options: Any) -> ClaimRequest:
    return ClaimRequest(SPACE.key(name), **{"on_lapsed": Lapsed.LEAVE, **options})


class Held:
    """A statement that is under way until `go` is set.

    Attributes:
        sent: how many keys each statement had, once it is answered.
    """

    def __init__(self, checker: Any, error: BaseException | None = None) -> None:
        self.entered = threading.Event()
        self.go = threading.Event()
        self.sent: list[int] = []
        self._checker = checker
        self._error = error

    def claim(self, asked: ClaimRequest) -> Any:
        if not self.entered.is_set():
            self.entered.set()
            assert self.go.wait(WITHIN_S)
            if self._error is not None:
                raise self._error
        answer = self._checker._claim(asked)
        self.sent.append(1)
        return answer

    def claim_many(self, asked: Any) -> Any:
        try:
            return self._checker._claim_many(asked)
        finally:
            self.sent.append(len(asked))

    def until_waiting(self, number: int) -> None:
        until(lambda: self._checker.combiner.waiting == number)


@contextmanager
def held(checker: Any, error: BaseException | None = None) -> Iterator[Held]:
    """The first claim of the block waits in the store; then it goes on, or raises an error."""
    first = Held(checker, error)
    with answering(checker, _claim=first.claim, _claim_many=first.claim_many):
        try:
            yield first
        finally:
            first.go.set()


def until(condition: Callable[[], object]) -> None:
    """Wait until it holds."""
    end = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.002)


class Calls:
    """Calls in threads of their own, and what they answer or raise."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self._threads: list[threading.Thread] = []

    def start(self, name: str, function: Callable[..., Any], *arguments: Any) -> None:
        def work() -> None:
            try:
                self.answers[name] = function(*arguments)
            except BaseException as error:
                self.answers[name] = error

        self._threads.append(threading.Thread(target=work))
        self._threads[-1].start()

    def join(self) -> dict[str, Any]:
        for thread in self._threads:
            thread.join(WITHIN_S)
            assert not thread.is_alive(), "a call has no answer"
        return self.answers
