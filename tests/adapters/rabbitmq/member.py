"""A consumer of a queue, and what tests do with it."""

import threading

from idempotent import Outcome, Result
from idempotent.testing.adapter_contract import until

ACK = Result(Outcome.PROCESSED)
DEAD = Result(Outcome.DEAD, error=ValueError("no such customer"))


def failed(after_s=0.1):
    return Result(Outcome.FAILED, error=ValueError("not now"), retry_after_s=after_s)


def counting_acks(adapter):
    """Counts the acknowledgements that the adapter really sends."""
    channel = adapter._session._channel
    sent = []
    send = channel.basic_ack

    def basic_ack(tag, multiple=False):
        sent.append((tag, multiple))
        send(tag, multiple)

    channel.basic_ack = basic_ack
    return sent


def run_for(worker, done, within_s=30.0):
    """Runs a worker in a thread until `done()`."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        until(done, "done")
    finally:
        worker.stop()
        thread.join(within_s)
    assert not thread.is_alive()
