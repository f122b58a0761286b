"""One consumer's life: started, served with deliveries, killed, started again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from idempotent.demo.broker import FlightBroker
from idempotent.demo.consumers import Job
from idempotent.demo.ended import ConsumerEndedError
from idempotent.demo.pipe import Reply, Request, receive, send
from idempotent.outcomes import Outcome
from idempotent.testing.children import last_words

_FIRST_GUESS_S: Final = 0.01
_HUNG_UP_S: Final = 10.0


class Supervisor:
    """Runs one consumer until its broker has nothing left.

    Args:
        name: for people.
        job: what the consumer is told.
        broker: what it is served from.
        kills: after how many deliveries, redeliveries not counted, it is killed; ascending.
        seed: decides how long after its last delivery each kill comes.
        log: file for what the consuming processes print.
    """

    def __init__(
        self, name: str, job: Job, broker: FlightBroker, kills: Sequence[int], *, seed: int, log: Path
    ) -> None:
        self.name: Final = name
        self.job: Final = job
        self.broker: Final = broker
        self.crashes = 0
        self.seconds = 0.0
        self._kills = list(kills)
        self._rng = random.Random(f"moments {seed}")
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()

    def run(self) -> None:
        """Serve and kill, until everything is acknowledged or `stop` is called.

        Raises:
            ConsumerEndedError: the consumer ended before its time.
        """
        started = time.monotonic()
        while not self._done:
            with self._consumer() as child:
                if killed := self._serve(child):
                    child.kill()
                else:
                    with suppress(subprocess.TimeoutExpired):
                        child.wait(_HUNG_UP_S)
            if killed and child.returncode == -signal.SIGKILL:
                self.crashes += 1
                self.broker.crash()
            elif child.returncode or not self._done:
                if self._stopped.is_set():
                    return
                raise ConsumerEndedError(
                    f"the consumer {self.name} ended by itself with code {child.returncode}: {self.last_words()}"
                )
        self.seconds = time.monotonic() - started

    @property
    def expected(self) -> int:
        """Deliveries that will be, as far as is known."""
        return self.broker.expected

    @property
    def delivered(self) -> int:
        """Deliveries so far."""
        return self.broker.delivered

    @property
    def skipped(self) -> int:
        """Duplicates among them."""
        return self.broker.outcomes[Outcome.DUPLICATE]

    @property
    def _done(self) -> bool:
        return self.broker.finished or self._stopped.is_set()

    def stop(self) -> None:
        """End it now, from another thread."""
        self._stopped.set()
        if self._child is not None:
            self._child.kill()

    def last_words(self) -> str:
        """The end of what the consuming processes printed, as one line."""
        return last_words(self._log)

    def _serve(self, child: subprocess.Popen[bytes]) -> bool:
        """Answer the consumer's requests; True when it is time to kill it, False when it hangs up."""
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            send(child.stdin, self.job)
            request: Request = receive(child.stdout)
            began, answered_before = time.monotonic(), self.broker.answered
            while True:
                self.broker.take(request.answers)
                parcels = self.broker.deliver(request.limit)
                send(child.stdin, Reply(parcels, self.broker.finished))
                answered = self.broker.answered - answered_before
                if parcels and self._kill_is_due(answered):
                    # Nothing that it says from now on is heard: a dead consumer's acknowledgements are lost.
                    del self._kills[0]
                    time.sleep(self._moment_s(time.monotonic() - began, answered))
                    return True
                request = receive(child.stdout)
        except (EOFError, BrokenPipeError):
            return False

    def _kill_is_due(self, answered: int) -> bool:
        """Once its point is passed, and this process got to work: one that dies at birth shows nothing."""
        broker = self.broker
        return bool(self._kills) and broker.sent >= self._kills[0] and (answered > 0 or broker.nothing_new)

    def _moment_s(self, served_s: float, answered: int) -> float:
        """From now to the kill: it may meet the batch before its claim, half-way, or booked but not acknowledged."""
        batch_s = served_s / answered * self.job.batch_size if answered else _FIRST_GUESS_S
        return self._rng.uniform(0.0, 2.0) * batch_s

    @contextmanager
    def _consumer(self) -> Iterator[subprocess.Popen[bytes]]:
        """A new consuming process, dead at the end."""
        with self._log.open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "idempotent.demo.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # what can be imported here
                start_new_session=True,  # Ctrl-C is for this process alone
            )
        self._child = child
        try:
            if self._stopped.is_set():
                child.kill()
            yield child
        finally:
            child.kill()
            # Closing flushes what the dead process never read.
            with suppress(BrokenPipeError), child:
                pass
