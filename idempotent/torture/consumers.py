"""ConsumerSlot: a consuming process with its proxies; killed and started again, each time under a new name."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from idempotent.testing.children import ChildEndedError, ChildProcess
from idempotent.testing.crashpoints import CrashKind, CrashPlan
from idempotent.torture.addresses import behind, proxy_for
from idempotent.torture.clocks import shifted_clock
from idempotent.torture.faults.incidents import Incident, Mishap
from idempotent.torture.faults.kinds import FaultKind
from idempotent.torture.job import Job
from idempotent.torture.journal import Tail, What

_GOODBYE_S: Final = 60.0
_AT_POINT: Final = re.compile(r"^(kill|pause) at (\w+)$", re.MULTILINE)


class ConsumerSlot:
    """One consumer.

    Args:
        number: which one.
        job: what it does; the URLs are the servers' own.
        folder: for its journal and log.
        record: takes what happened to it.
    """

    def __init__(self, number: int, job: Job, folder: Path, record: Callable[[Incident], object]) -> None:
        """Start nothing but the proxies."""
        self.number: Final = number
        self.store_proxy: Final = proxy_for(job.checker_url)
        self.broker_proxy: Final = proxy_for(job.broker_url)
        self.started = 0
        self.at_work = False
        self._record = record
        self._log = folder / f"consumer-{number}.log"
        self.path: Final = folder / f"consumer-{number}.jsonl"
        self._tail = Tail(self.path)
        self._job = replace(
            job,
            journal=str(self.path),
            checker_url=behind(job.checker_url, self.store_proxy.port)
            if self.store_proxy
            else job.checker_url,
            broker_url=behind(job.broker_url, self.broker_proxy.port)
            if self.broker_proxy
            else job.broker_url,
        )
        self._child: ChildProcess | None = None
        self._armed: tuple[CrashPlan, float] | None = None
        self._paused: tuple[float, str, float] | None = None
        self._met = 0

    @property
    def process(self) -> str:
        """The name of what runs now."""
        return f"{self.number}.{self.started}"

    @property
    def busy(self) -> bool:
        """Whether something is being done to it already."""
        return self._paused is not None or not self.at_work

    def start(self, *, shift_s: float = 0.0) -> None:
        """Begin, or begin again, perhaps with a wrong clock."""
        self.started += 1
        self.at_work = False
        self._met = len(self._points_met(CrashKind.KILL))
        self._armed = self._paused = None
        job = replace(self._job, process=self.process, shift_s=shift_s)
        self._child = ChildProcess(
            "idempotent.torture.child",
            asdict(job),
            self._log,
            environ=shifted_clock(shift_s) if shift_s else None,
        )

    def journal(self) -> Iterator[dict[str, object]]:
        """What it has written since the last look."""
        for line in self._tail.lines():
            if line["process"] == self.process and line["what"] == What.SETTLED.value:
                self.at_work = True
            yield line

    # What is done to it

    def kill(self, kind: FaultKind = FaultKind.KILL, *, shift_s: float = 0.0) -> None:
        """SIGKILL, and a new process."""
        began = time.monotonic()
        self._end_pause()
        self._alive.kill()
        self._record(
            Incident(kind, began, time.monotonic(), self.process, detail=f"{shift_s:+g} s" if shift_s else "")
        )
        self.start(shift_s=shift_s)

    def arm(self, plan: CrashPlan, for_s: float) -> None:
        """Let it die, or stall for so long, at a point. Whether and when it passes it, it decides itself."""
        self._armed = plan, for_s
        self._alive.tell(f"{plan.kind.value}:{plan.point}:{plan.nth}")

    def disarm(self) -> None:
        """Let it live."""
        if self._armed is not None:
            self._armed = None
            self._alive.tell(None)

    def pause(self, for_s: float) -> None:
        """SIGSTOP; `look` ends it."""
        self._alive.pause()
        self._paused = time.monotonic(), "", for_s

    def look(self) -> None:
        """Notice what happened to it, wake it when its time has come, start it again when it died."""
        if self._paused is not None:
            if time.monotonic() - self._paused[0] >= self._paused[2]:
                self._end_pause()
            return
        code = self._alive.poll()
        if code is not None:
            self._died(code)
        elif self._alive.is_paused():
            # Told to live when it was too late, it goes on at once.
            for_s = self._armed[1] if self._armed else 0.0
            self._armed = None
            self._paused = time.monotonic(), (self._points_met(CrashKind.PAUSE) or [""])[-1], for_s

    def calm(self) -> None:
        """Undo what is being done to it."""
        self._end_pause()
        self.disarm()
        for proxy in (self.store_proxy, self.broker_proxy):
            if proxy is not None:
                proxy.lose_nothing()
                proxy.deliver()
                proxy.recover()
                proxy.go_on()
                proxy.delay(0.0)

    def stop(self) -> None:
        """Let it end in order."""
        try:
            code = self._alive.stop(_GOODBYE_S)
        except ChildEndedError as error:
            self._record(self._ended(str(error)))
        else:
            if code:
                self._record(self._ended(f"code {code} when told to stop: {self._alive.last_words()}"))

    def close(self) -> None:
        """End it at once."""
        if self._child is not None:
            self._child.kill()
        for proxy in (self.store_proxy, self.broker_proxy):
            if proxy is not None:
                proxy.close()

    # Private

    @property
    def _alive(self) -> ChildProcess:
        assert self._child is not None
        return self._child

    def _died(self, code: int) -> None:
        self._armed = None
        self._alive.kill()  # reads what it said
        met = self._points_met(CrashKind.KILL)
        now = time.monotonic()
        # It may have been told to live when it was too late.
        if code == -signal.SIGKILL and len(met) > self._met:
            self._record(Incident(FaultKind.KILL_AT_POINT, now, now, self.process, met[-1]))
        else:
            self._record(self._ended(f"code {code}: {self._alive.last_words()}"))
        self.start()

    def _points_met(self, kind: CrashKind) -> list[str]:
        """At which points it has died or paused so far, by its own words."""
        said = self._log.read_text(errors="replace") if self._log.exists() else ""
        return [point for what, point in _AT_POINT.findall(said) if what == kind.value]

    def _end_pause(self) -> None:
        if self._paused is not None:
            (began, point, _), self._paused = self._paused, None
            self._alive.resume()
            kind = FaultKind.PAUSE_AT_POINT if point else FaultKind.PAUSE
            self._record(Incident(kind, began, time.monotonic(), self.process, point))

    def _ended(self, why: str) -> Incident:
        now = time.monotonic()
        return Incident(Mishap.ENDED, now, now, self.process, detail=why)
