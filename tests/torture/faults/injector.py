"""FaultInjector: carries out the planned faults, and ends each in time."""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final

from idempotent.errors import StoreError
from idempotent.testing.crashpoints import CrashKind, CrashPlan
from idempotent.testing.proxy import Loss, Proxy
from tests.torture.consumers import ConsumerSlot
from tests.torture.faults.kinds import Fault, FaultKind, Incident, Target
from tests.torture.faults.schedule import Servers
from tests.torture.stores import EffectStore

# A fault waits this long for a consumer to start: one that has just started shows nothing.
_READY_S: Final = 8.0
_AGAIN_S: Final = 1.0
_LOSSES: Final = {FaultKind.LOSE_STORE_QUESTION: Loss.QUESTION, FaultKind.LATE_STORE_QUESTION: Loss.LATE}
# Within this time a packet to lose passes.
_PASSES_S: Final = 0.5


class FaultInjector:
    """Carries out faults. The seed chooses the keys that are lost; `record` is called with each incident."""

    def __init__(
        self,
        faults: Sequence[Fault],
        slots: Sequence[ConsumerSlot],
        producer_proxy: Proxy | None,
        servers: Servers,
        store: EffectStore,
        seed: int,
        record: Callable[[Incident], object],
    ) -> None:
        self._due = list(faults)
        self._slots = slots
        self._producer_proxy = producer_proxy
        self._servers = servers
        self._store = store
        self._chance = random.Random(f"keys {seed}")
        self._record = record
        self._order = itertools.count()
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        # One thread that lives as long as the run: some servers die with the thread that started them.
        self._restarter = ThreadPoolExecutor(1, "torture-restarts")
        self._restarts: list[Future[None]] = []
        # A store does not start on a full disk, and a broker that is down does not answer.
        self._store_turn, self._broker_turn = threading.Lock(), threading.Lock()

    def act(self, elapsed_s: float) -> None:
        """Carry out the faults that are due, and end those whose time is over."""
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            heapq.heappop(self._later)[2]()
        for slot in self._slots:
            slot.look()
        for fault in [fault for fault in self._due if fault.at_s <= elapsed_s]:
            slot_of = self._slot_of(fault)
            if slot_of is None or not slot_of.busy or elapsed_s - fault.at_s > _READY_S:
                self._due.remove(fault)
                self._apply(fault, slot_of)

    def calm(self) -> None:
        """End every fault, and wait until the servers that are being restarted answer. Raises what a restart raised."""
        self._due.clear()
        while self._later:
            heapq.heappop(self._later)[2]()
        for restart in self._restarts:
            restart.result()
        for slot in self._slots:
            slot.calm()
        if self._producer_proxy is not None:
            self._producer_proxy.lose_nothing()

    def close(self) -> None:
        """Start no more restarts."""
        self._restarter.shutdown()

    # Private

    def _slot_of(self, fault: Fault) -> ConsumerSlot | None:
        """The consumer it hits; None: a server, or the producer."""
        if fault.kind.target is Target.SERVER or fault.slot >= len(self._slots):
            return None
        return self._slots[fault.slot]

    def _apply(self, fault: Fault, slot: ConsumerSlot | None) -> None:
        match fault.kind.target:
            case Target.SERVER:
                self._to_server(fault)
            case Target.CONSUMER:
                if slot is not None and not slot.busy:
                    _to_consumer(fault, slot)
            case Target.STORE_CONNECTION if slot is not None:
                self._to_connections(fault, slot.process, slot.store_proxy)
            case _:
                proxy = self._producer_proxy if slot is None else slot.broker_proxy
                self._to_connections(fault, "" if slot is None else slot.process, proxy)

    def _to_server(self, fault: Fault) -> None:
        match fault.kind:
            case FaultKind.RESTART_STORE:
                self._restart(fault, self._servers.restart_store, self._store_turn)
            case FaultKind.RESTART_BROKER:
                self._restart(fault, self._servers.restart_broker, self._broker_turn)
            case FaultKind.FORGET | FaultKind.EVICT:
                self._lose_keys(fault)
            case _:
                self._harm(fault)

    def _to_connections(self, fault: Fault, process: str, proxy: Proxy | None) -> None:
        if proxy is None:
            return
        match fault.kind:
            case FaultKind.CUT_STORE | FaultKind.CUT_BROKER:
                if proxy.cut():
                    self._happened(fault, process)
            case FaultKind.STALL_STORE | FaultKind.STALL_BROKER:
                proxy.stall()
                self._end_later(fault, process, proxy.go_on)
            case FaultKind.DELAY_STORE | FaultKind.DELAY_BROKER:
                proxy.delay(fault.amount)
                self._end_later(fault, process, lambda: proxy.delay(0.0))
            case _:
                self._lose_a_packet(fault, process, proxy)

    def _lose_a_packet(self, fault: Fault, process: str, proxy: Proxy) -> None:
        loss = _LOSSES.get(fault.kind, Loss.ANSWER)
        pattern = self._telling_packet() if fault.kind.target is Target.STORE_CONNECTION else b""
        passed = proxy.lose(pattern, loss, then_refuse=loss is not Loss.LATE and fault.for_s > 0)

        def look() -> None:
            proxy.lose_nothing()
            if passed.is_set():
                self._happened(fault, process)
            if loss is Loss.LATE:
                proxy.deliver()
            proxy.recover()

        self._at(time.monotonic() + _PASSES_S + fault.for_s, look)

    def _telling_packet(self) -> bytes:
        """What is in the packets whose lost answer matters most."""
        if self._store.is_redis:
            return b"EVALSHA"
        # A leased checker's statements commit automatically.
        return b"COMMIT" if self._store.is_transactional else b"UPDATE "

    def _restart(self, fault: Fault, restart: Callable[[float], object] | None, turn: threading.Lock) -> None:
        assert restart is not None

        def act() -> None:
            with turn:
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
        # Some keys may be lost even so.
        self._record(Incident(fault.kind, began, time.monotonic(), detail=f"{fault.amount:.0%}"))

    def _harm(self, fault: Fault) -> None:
        turn = self._store_turn if fault.kind is FaultKind.FILL_DISK else self._broker_turn
        if not turn.acquire(blocking=False):
            self._at(time.monotonic() + _AGAIN_S, lambda: self._harm(fault))
            return
        lasting = ExitStack()
        lasting.callback(turn.release)
        lasting.enter_context(self._servers.harms[fault.kind](self._store.name))
        self._end_later(fault, "", lasting.close)

    def _end_later(self, fault: Fault, process: str, undo: Callable[[], object]) -> None:
        began = time.monotonic()

        def end() -> None:
            undo()
            self._record(Incident(fault.kind, began, time.monotonic(), process))

        self._at(began + fault.for_s, end)

    def _happened(self, fault: Fault, process: str) -> None:
        now = time.monotonic()
        self._record(Incident(fault.kind, now, now, process))

    def _at(self, when: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._later, (when, next(self._order), act))


def _to_consumer(fault: Fault, slot: ConsumerSlot) -> None:
    match fault.kind:
        case FaultKind.PAUSE:
            slot.pause(fault.for_s)
        case FaultKind.STOP:
            slot.replace()
        case FaultKind.KILL_AT_POINT:
            slot.arm(CrashPlan(fault.point, fault.nth), 0.0)
        case FaultKind.PAUSE_AT_POINT:
            slot.arm(CrashPlan(fault.point, fault.nth, CrashKind.PAUSE), fault.for_s)
        case _:
            slot.kill(fault.kind, shift_s=fault.amount)
