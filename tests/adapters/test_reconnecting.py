"""When a lost connection is tried again."""

import pytest

from idempotent.adapters.reconnecting import Reconnecting
from idempotent.errors import AdapterError
from idempotent.policy import Backoff


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_the_waits_grow_and_end_with_success():
    clock = Clock()
    trying = Reconnecting("a broker", backoff=Backoff(1, 8), clock=clock)
    assert trying.wait_s == 0
    for longest in (1, 2, 4, 8, 8):
        trying.failed(OSError("refused"))
        assert longest / 2 <= trying.wait_s <= longest
        clock.now += trying.wait_s
        assert trying.wait_s == 0
    trying.succeeded()
    trying.lost(OSError("reset"))
    assert trying.wait_s == 0
    trying.failed(OSError("refused"))
    assert trying.wait_s <= 1


def test_fail_fast_is_about_the_first_attempt_only():
    trying = Reconnecting("amqp://broker", fail_fast=True)
    with pytest.raises(AdapterError, match="cannot connect to amqp://broker: refused"):
        trying.failed(OSError("refused"))
    trying.succeeded()
    trying.failed(OSError("refused"))
    assert trying.wait_s > 0
