"""ConsumerSlot: a consuming process with its proxies; killed and started again, each time under a new name."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from examples.demo.stage.children import ChildEndedError, ChildProcess
from idempotent.testing.crashpoints import CrashKind, CrashPlan
from tests.torture.addresses import proxied
from tests.torture.clocks import shifted_clock
from tests.torture.faults.kinds import FaultKind, Incident, Mishap
from tests.torture.journal import Tail, What
from tests.torture.settings import Job

_STOP_S: Final = 60.0
_WORK: Final = (What.SETTLED.value, What.PUBLISHED.value)
_AT_POINT: Final = re.compile(r"^(kill|pause) at (\w+)$", re.MULTILINE)


class ConsumerSlot:
    """One consumer. The URLs of its job are those of the servers themselves; `record` is called with each incident."""

    def __init__(
        self,
        number: int,
        job: Job,
        folder: Path,
        record: Callable[[Incident], object],
        *,
        both_kinds: bool = False,
    ) -> None:
        """Start the proxies only. With `both_kinds` its processes have plain and async handlers in turn."""
        self.number: Final = number
        self.path: Final = folder / f"consumer-{number}.jsonl"
        self.store_proxy, checker_url = proxied(job.checker_url)
        self.broker_proxy, broker_url = proxied(job.broker_url)
        self.started = 0
        self.at_work = False
        self.is_up = False
        self._record = record
        self._both_kinds = both_kinds
        self._log = folder / f"consumer-{number}.log"
        self._tail = Tail(self.path)
        self._job = replace(job, journal=str(self.path), checker_url=checker_url, broker_url=broker_url)
        self._proxies = [proxy for proxy in (self.store_proxy, self.broker_proxy) if proxy is not None]
        self._child: ChildProcess | None = None
        self._armed: tuple[CrashPlan, float] | None = None
        self._paused: tuple[float, str, float] | None = None
        self._stopping_since: float | None = None
        self._kills_met = 0

    @property
    def process(self) -> str:
        """The name of the current process: `<number>.<how often started>`."""
        return f"{self.number}.{self.started}"

    @property
    def busy(self) -> bool:
        """Whether it is paused or stopping, or has done nothing yet."""
        return self._paused is not None or self._stopping_since is not None or not self.at_work

    def start(self, *, shift_s: float = 0.0) -> None:
        """Start a process, with a clock that is wrong by this many seconds."""
        self.started += 1
        self.at_work = self.is_up = False
        self._kills_met = len(self._points_met(CrashKind.KILL))
        self._armed = self._paused = self._stopping_since = None
        # Plain and async handlers take turns, also on the same keys.
        is_async = self._both_kinds and (self.number + self.started) % 2 == 1
        job = replace(self._job, process=self.process, shift_s=shift_s, is_async=is_async)
        environ = shifted_clock(shift_s) if shift_s else None
        self._child = ChildProcess("tests.torture.child", asdict(job), self._log, environ=environ)

    def journal(self) -> Iterator[dict[str, object]]:
        """The lines written since the last call."""
        for line in self._tail.lines():
            if line["process"] == self.process:
                self.is_up = True
                self.at_work |= line["what"] in _WORK
            yield line

    # Faults

    def kill(self, kind: FaultKind = FaultKind.KILL, *, shift_s: float = 0.0) -> None:
        """SIGKILL, and a new process."""
        began = time.monotonic()
        self._end_pause()
        self._alive.kill()
        detail = f"{shift_s:+g} s" if shift_s else ""
        self._record(Incident(kind, began, time.monotonic(), self.process, detail=detail))
        self.start(shift_s=shift_s)

    def replace(self) -> None:
        """SIGTERM; `look` starts a new process when this one has ended."""
        self._stopping_since = time.monotonic()
        self._alive.terminate()

    def arm(self, plan: CrashPlan, for_s: float) -> None:
        """Have it die, or pause for `for_s` seconds, at a crash point. Its own work decides when it passes there."""
        self._armed = plan, for_s
        self._alive.tell(f"{plan.kind.value}:{plan.point}:{plan.nth}")

    def disarm(self) -> None:
        """Cancel `arm`."""
        if self._armed is not None:
            self._armed = None
            self._alive.tell(None)

    def pause(self, for_s: float) -> None:
        """SIGSTOP; `look` ends it after this many seconds."""
        self._alive.pause()
        self._paused = time.monotonic(), "", for_s

    def look(self) -> None:
        """Notice that it paused or died at a crash point; end a pause in time, and start it again after a death."""
        if self._paused is not None:
            if time.monotonic() - self._paused[0] >= self._paused[2]:
                self._end_pause()
            return
        code = self._alive.poll()
        if code is not None:
            self._died(code)
        elif self._alive.is_paused():
            # If it passed the point before it read the `disarm`, the pause ends at once.
            for_s = self._armed[1] if self._armed else 0.0
            self._armed = None
            self._paused = time.monotonic(), (self._points_met(CrashKind.PAUSE) or [""])[-1], for_s

    def calm(self) -> None:
        """End every fault of this consumer."""
        self._end_pause()
        self.disarm()
        for proxy in self._proxies:
            proxy.lose_nothing()
            proxy.deliver()
            proxy.recover()
            proxy.go_on()
            proxy.delay(0.0)

    def stop(self) -> None:
        """SIGTERM: it finishes and settles what it has."""
        try:
            code = self._alive.stop(_STOP_S)
        except ChildEndedError as error:
            self._record_end(str(error))
        else:
            # A process that has just started does not handle the signal yet.
            if code and (code != -signal.SIGTERM or self.at_work):
                self._record_end(f"code {code} after SIGTERM: {self._alive.last_words()}")

    def close(self) -> None:
        """End it at once."""
        if self._child is not None:
            self._child.kill()
        for proxy in self._proxies:
            proxy.close()

    # Private

    @property
    def _alive(self) -> ChildProcess:
        assert self._child is not None
        return self._child

    def _died(self, code: int) -> None:
        self._armed = None
        self._alive.kill()  # reads the rest of its output
        points = self._points_met(CrashKind.KILL)
        now = time.monotonic()
        # Not `self._armed`: it may have passed the point before it read the `disarm`.
        if code == -signal.SIGKILL and len(points) > self._kills_met:
            self._record(Incident(FaultKind.KILL_AT_POINT, now, now, self.process, points[-1]))
        elif code == 0 and self._stopping_since is not None:
            self._record(Incident(FaultKind.STOP, self._stopping_since, now, self.process))
        else:
            self._record_end(f"code {code}: {self._alive.last_words()}")
        self.start()

    def _points_met(self, kind: CrashKind) -> list[str]:
        """The crash points at which it died or paused so far, as it logged them."""
        log = self._log.read_text(errors="replace") if self._log.exists() else ""
        return [point for what, point in _AT_POINT.findall(log) if what == kind.value]

    def _end_pause(self) -> None:
        if self._paused is not None:
            (began, point, _), self._paused = self._paused, None
            self._alive.resume()
            kind = FaultKind.PAUSE_AT_POINT if point else FaultKind.PAUSE
            self._record(Incident(kind, began, time.monotonic(), self.process, point))

    def _record_end(self, why: str) -> None:
        now = time.monotonic()
        self._record(Incident(Mishap.ENDED, now, now, self.process, detail=why))
