"""Workers that die, are killed and are stopped: `python -m` this module, with a plan as JSON. Prints what became of it.

It is the broker of its workers, and forks them: it has no threads. What a worker leaves unsettled is delivered again,
first of all and with the broker's mark.
"""

from __future__ import annotations

import gc
import json
import os
import random
import select
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tests.guarantees.deaths.child import work

LIMIT_S = 300.0


@dataclass(frozen=True)
class Plan:
    """One scenario.

    Attributes:
        checker: the URL of the checker.
        options: more options of the checker.
        effects: the table of the handler's rows; None: a leased checker, whose handler writes nothing.
        seed: of all that is random.
        messages: how many innocent messages there are.
        killers: how many messages kill their process.
        workers: how many processes.
        concurrency: handlers that run at once in each.
        batch_size: of each worker.
        prefetch: how many unsettled deliveries a worker has.
        slow_s: the longest time of a handler.
        kills: how often a process is killed from outside.
        stops: how often a process is stopped in order.
        every_s: the time between two of these.
        drain_s: how long a worker waits for its handlers when it is stopped.
        max_attempts: of the consumer.
        max_deaths: likewise.
    """

    checker: str
    options: dict[str, Any]
    effects: str | None
    seed: int
    messages: int = 40
    killers: int = 2
    workers: int = 2
    concurrency: int = 4
    batch_size: int = 1
    prefetch: int = 8
    slow_s: float = 0.05
    kills: int = 0
    stops: int = 0
    every_s: float = 0.5
    drain_s: float = 0.1
    max_attempts: int = 1
    max_deaths: int = 5


@dataclass
class Child:
    pid: int
    to: int
    said: int
    in_hand: dict[str, bool] = field(default_factory=dict)
    rest: bytes = b""


class Scenario:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.random = random.Random(plan.seed)
        # Another scenario may have left its keys in the same store.
        names = [f"m{plan.seed}-{number}" for number in range(plan.messages)]
        names += [f"killer{plan.seed}-{number}" for number in range(plan.killers)]
        self.random.shuffle(names)
        self.waiting = deque((name, False) for name in names)
        self.outcomes: dict[str, str] = {}
        self.left = set(names)
        self.children: list[Child] = []
        self.faults = [signal.SIGKILL] * plan.kills + [signal.SIGTERM] * plan.stops
        self.random.shuffle(self.faults)
        self.suicides = 0

    def run(self) -> None:
        until, fault_at = time.monotonic() + LIMIT_S, time.monotonic() + self.plan.every_s
        while self.left and time.monotonic() < until:
            while len(self.children) < self.plan.workers:
                self.children.append(self.fork())
            for child in self.children:
                self.give(child)
            if self.faults and time.monotonic() > fault_at:
                os.kill(self.random.choice(self.children).pid, self.faults.pop())
                fault_at = time.monotonic() + self.plan.every_s
            ready, _, _ = select.select([child.said for child in self.children], [], [], 0.05)
            for child in [each for each in self.children if each.said in ready]:
                self.hear(child)
        for child in self.children:
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)

    def fork(self) -> Child:
        given, to = os.pipe()
        said, told = os.pipe()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                for end in (to, said, *(end for child in self.children for end in (child.to, child.said))):
                    os.close(end)
                work(self.plan, given, told)
                code = 0
            finally:
                os._exit(code)
        os.close(given)
        os.close(told)
        return Child(pid, to, said)

    def give(self, child: Child) -> None:
        while self.waiting and len(child.in_hand) < self.plan.prefetch:
            name, again = self.waiting.popleft()
            child.in_hand[name] = again
            try:
                os.write(child.to, f"{name} {'again' if again else 'new'}\n".encode())
            except BrokenPipeError:
                return  # it has ended, as `hear` will find

    def hear(self, child: Child) -> None:
        read = os.read(child.said, 65536)
        if not read:
            self.end(child)
            return
        *lines, child.rest = (child.rest + read).split(b"\n")
        for line in lines:
            name, outcome = line.decode().split()
            if outcome == "failed":
                continue  # the worker has a delayed copy
            child.in_hand.pop(name)
            self.left.discard(name)
            self.outcomes.setdefault(name, outcome)

    def end(self, child: Child) -> None:
        self.children.remove(child)
        os.close(child.to)
        os.close(child.said)
        _, status = os.waitpid(child.pid, 0)
        self.suicides += os.WIFSIGNALED(status)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            sys.exit(f"a worker ended with {os.WEXITSTATUS(status)}")
        self.waiting.extendleft((name, True) for name in reversed(child.in_hand))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    scenario = Scenario(Plan(**json.loads(sys.argv[1])))
    gc.freeze()
    scenario.run()
    report = {"outcomes": scenario.outcomes, "left": sorted(scenario.left), "deaths": scenario.suicides}
    print(json.dumps(report))  # noqa: T201
