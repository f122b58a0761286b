"""Harm: does what the schedule says, and takes it back in time."""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from typing import Final

from idempotent.errors import StoreError
from idempotent.testing.crashpoints import CrashKind, CrashPlan
from idempotent.testing.proxy import Loss, Proxy
from idempotent.torture.consumers import ConsumerSlot
from idempotent.torture.faults.feasible import OF_THE_STORE
from idempotent.torture.faults.incidents import Incident
from idempotent.torture.faults.kinds import Fault, FaultKind
from idempotent.torture.faults.servers import Servers
from idempotent.torture.stores import Store

# A consumer that is just starting shows nothing; it is waited for, so long.
_READY_S: Final = 8.0
_AGAIN_S: Final = 1.0
_OF_A_SERVER: Final = frozenset(
    {
        FaultKind.RESTART_STORE,
        FaultKind.RESTART_BROKER,
        FaultKind.FORGET,
        FaultKind.EVICT,
        FaultKind.FILL_DISK,
    }
)
_LOSSES: Final = {FaultKind.LOSE_STORE_QUESTION: Loss.QUESTION, FaultKind.LATE_STORE_QUESTION: Loss.LATE}
# In so much time a packet that can be chosen comes by.
_COMES_BY_S: Final = 0.5


class Harm:
    """Applies faults.

    Args:
        faults: the schedule.
        slots: the consumers.
        producer_proxy: between the producer and the broker.
        servers: with what restarts them.
        store: of the run.
        seed: chooses the keys that are lost.
        record: takes what was done.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        slots: Sequence[ConsumerSlot],
        producer_proxy: Proxy | None,
        servers: Servers,
        store: Store,
        seed: int,
        record: Callable[[Incident], object],
    ) -> None:
        """Do nothing yet."""
        self._due = list(faults)
        self._slots = slots
        self._producer_proxy = producer_proxy
        self._servers = servers
        self._store = store
        self._chance = random.Random(f"keys {seed}")
        self._record = record
        self._order = itertools.count()
        self._undo: list[tuple[float, int, Callable[[], object]]] = []
        self._disk = ExitStack()
        # One thread for all of them, which lives on: some servers die with the thread that started them.
        self._restarter = ThreadPoolExecutor(1, "torture-restarts")
        self._restarts: list[Future[None]] = []
        self._store_turn = threading.Lock()

    @property
    def done(self) -> bool:
        """Whether the schedule is at its end."""
        return not self._due

    def act(self, elapsed_s: float) -> None:
        """Do what is due, and take back what is over."""
        now = time.monotonic()
        while self._undo and self._undo[0][0] <= now:
            heapq.heappop(self._undo)[2]()
        for slot in self._slots:
            slot.look()
        for fault in [fault for fault in self._due if fault.at_s <= elapsed_s]:
            if self._ready(fault) or elapsed_s - fault.at_s > _READY_S:
                self._due.remove(fault)
                self._apply(fault)

    def calm(self) -> None:
        """Take everything back, and wait until what is being restarted is there.

        Raises:
            Exception: what a restart raised.
        """
        self._due.clear()
        while self._undo:
            heapq.heappop(self._undo)[2]()
        for restart in self._restarts:
            restart.result()
        for slot in self._slots:
            slot.calm()
        if self._producer_proxy is not None:
            self._producer_proxy.lose_nothing()

    def close(self) -> None:
        """Restart nothing any more."""
        self._restarter.shutdown()

    # Private

    def _ready(self, fault: Fault) -> bool:
        return (
            fault.kind in _OF_A_SERVER or fault.slot >= len(self._slots) or not self._slots[fault.slot].busy
        )

    def _apply(self, fault: Fault) -> None:
        match fault.kind:
            case FaultKind.RESTART_STORE:
                self._restart(fault, self._servers.restart_store)
            case FaultKind.RESTART_BROKER:
                self._restart(fault, self._servers.restart_broker)
            case FaultKind.FORGET | FaultKind.EVICT:
                self._lose_keys(fault)
            case FaultKind.FILL_DISK:
                self._fill_disk(fault)
            case (
                FaultKind.KILL
                | FaultKind.SHIFT_CLOCK
                | FaultKind.PAUSE
                | FaultKind.KILL_AT_POINT
                | FaultKind.PAUSE_AT_POINT
            ):
                if not self._slots[fault.slot].busy:
                    self._to_consumer(fault, self._slots[fault.slot])
            case _:
                self._to_connections(fault)

    def _to_consumer(self, fault: Fault, slot: ConsumerSlot) -> None:
        match fault.kind:
            case FaultKind.KILL | FaultKind.SHIFT_CLOCK:
                slot.kill(fault.kind, shift_s=fault.amount)
            case FaultKind.PAUSE:
                slot.pause(fault.for_s)
            case FaultKind.KILL_AT_POINT:
                slot.arm(CrashPlan(fault.point, fault.nth), 0.0)
            case _:
                slot.arm(CrashPlan(fault.point, fault.nth, CrashKind.PAUSE), fault.for_s)

    def _to_connections(self, fault: Fault) -> None:
        is_producer = fault.slot >= len(self._slots)
        slot = None if is_producer else self._slots[fault.slot]
        of_store = fault.kind in OF_THE_STORE
        proxy = self._producer_proxy if slot is None else slot.store_proxy if of_store else slot.broker_proxy
        if proxy is None:
            return
        process = "" if slot is None else slot.process
        match fault.kind:
            case FaultKind.CUT_STORE | FaultKind.CUT_BROKER:
                if proxy.cut():
                    self._happened(fault, process)
            case FaultKind.STALL_STORE | FaultKind.STALL_BROKER:
                proxy.stall()
                self._later(fault, process, proxy.go_on)
            case FaultKind.DELAY_STORE | FaultKind.DELAY_BROKER:
                proxy.delay_s = fault.amount
                self._later(fault, process, lambda: setattr(proxy, "delay_s", 0.0))
            case _:
                self._lose_a_packet(fault, process, proxy, self._telling_packet() if of_store else b"")

    def _lose_a_packet(self, fault: Fault, process: str, proxy: Proxy, pattern: bytes) -> None:
        loss = _LOSSES.get(fault.kind, Loss.ANSWER)
        came_by = proxy.lose(pattern, loss, then_refuse=loss is not Loss.LATE and fault.for_s > 0)

        def look() -> None:
            proxy.lose_nothing()
            # Nothing may have come by.
            if came_by.is_set():
                self._happened(fault, process)
            if loss is Loss.LATE:
                proxy.deliver()
            proxy.recover()

        self._at(time.monotonic() + _COMES_BY_S + fault.for_s, look)

    def _telling_packet(self) -> bytes:
        """What is in the packets after which it matters most that their answer is lost."""
        if self._store.is_redis:
            return b"EVALSHA"
        # A leased checker's statements commit by themselves.
        return b"COMMIT" if self._store.is_transactional else b"UPDATE "

    def _restart(self, fault: Fault, restart: Callable[[float], object] | None) -> None:
        assert restart is not None

        def act() -> None:
            # A full disk is no place to start at.
            with self._store_turn if fault.kind is FaultKind.RESTART_STORE else nullcontext():
                began = time.monotonic()
                restart(fault.for_s)
            self._record(Incident(fault.kind, began, time.monotonic()))

        self._restarts.append(self._restarter.submit(act))

    def _lose_keys(self, fault: Fault) -> None:
        began = time.monotonic()
        try:
            self._store.lose_keys(fault.amount, self._chance)
        except StoreError:  # it is being restarted
            self._at(began + _AGAIN_S, lambda: self._lose_keys(fault))
        # Some may be lost even so.
        self._record(Incident(fault.kind, began, time.monotonic(), detail=f"{fault.amount:.0%}"))

    def _fill_disk(self, fault: Fault) -> None:
        assert self._servers.full_disk is not None
        if not self._store_turn.acquire(blocking=False):
            self._at(time.monotonic() + _AGAIN_S, lambda: self._fill_disk(fault))
            return
        self._disk.callback(self._store_turn.release)
        self._disk.enter_context(self._servers.full_disk())
        self._later(fault, "", self._disk.close)

    def _later(self, fault: Fault, process: str, undo: Callable[[], object]) -> None:
        began = time.monotonic()

        def end() -> None:
            undo()
            self._record(Incident(fault.kind, began, time.monotonic(), process))

        self._at(began + fault.for_s, end)

    def _happened(self, fault: Fault, process: str) -> None:
        now = time.monotonic()
        self._record(Incident(fault.kind, now, now, process))

    def _at(self, when: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._undo, (when, next(self._order), act))
