"""What can be done to consumers, connections, brokers and stores, what is planned, and what really happened."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Self


class Target(Enum):
    """What a fault hits."""

    CONSUMER = "consumer"
    STORE_CONNECTION = "store connection"
    """The connections of one consumer to the store."""
    BROKER_CONNECTION = "broker connection"
    """The connections of one consumer, or of the producer, to the broker."""
    SERVER = "server"


class FaultGroup(Enum):
    """How faults are counted in tables."""

    KILL = "kills"
    STOP = "stops"
    PAUSE = "pauses"
    RESTART = "restarts"
    CUT = "cuts"
    OTHER = "other faults"

    @property
    def kinds(self) -> list[FaultKind]:
        """The faults of this group."""
        return [kind for kind in FaultKind if kind.group is self]


class FaultKind(Enum):
    """One kind of fault: its target, how it is counted, and about how often it happens, at least once."""

    target: Target
    group: FaultGroup
    every_s: float

    KILL = "kill", Target.CONSUMER, FaultGroup.KILL, 10.0
    """SIGKILL at a random moment."""
    KILL_AT_POINT = "kill at a point", Target.CONSUMER, FaultGroup.KILL, 7.0
    """SIGKILL at a named crash point."""
    STOP = "stop", Target.CONSUMER, FaultGroup.STOP, 6.0
    """SIGTERM: the consumer finishes what it has, and ends; then a new process. Allows no repetition."""
    PAUSE = "pause", Target.CONSUMER, FaultGroup.PAUSE, 20.0
    """SIGSTOP for longer than a lease; then SIGCONT."""
    PAUSE_AT_POINT = "pause at a point", Target.CONSUMER, FaultGroup.PAUSE, 20.0
    """The same, at a named crash point."""
    CUT_STORE = "cut store", Target.STORE_CONNECTION, FaultGroup.CUT, 8.0
    """All connections are cut."""
    CUT_BROKER = "cut broker", Target.BROKER_CONNECTION, FaultGroup.CUT, 8.0
    """All connections are cut."""
    LOSE_STORE_ANSWER = "lose store's answer", Target.STORE_CONNECTION, FaultGroup.CUT, 8.0
    """The store acts, and the connection is cut before its answer arrives; where possible, the answer to COMMIT."""
    LOSE_STORE_QUESTION = "lose store's question", Target.STORE_CONNECTION, FaultGroup.CUT, 8.0
    """The same packet never reaches the store, and the connection is cut."""
    LATE_STORE_QUESTION = "late store's question", Target.STORE_CONNECTION, FaultGroup.CUT, 16.0
    """The same packet reaches the store only after its client has lost the connection, and perhaps looked again."""
    LOSE_BROKER_ANSWER = "lose broker's answer", Target.BROKER_CONNECTION, FaultGroup.CUT, 9.0
    """The broker acts, and the connection is cut before its answer arrives."""
    STALL_STORE = "stall store", Target.STORE_CONNECTION, FaultGroup.OTHER, 25.0
    """Nothing passes, for longer than a lease."""
    STALL_BROKER = "stall broker", Target.BROKER_CONNECTION, FaultGroup.OTHER, 25.0
    """Nothing passes."""
    DELAY_STORE = "delay store", Target.STORE_CONNECTION, FaultGroup.OTHER, 30.0
    """Each packet is late."""
    DELAY_BROKER = "delay broker", Target.BROKER_CONNECTION, FaultGroup.OTHER, 30.0
    """Each packet is late."""
    SHIFT_CLOCK = "shift clock", Target.CONSUMER, FaultGroup.KILL, 30.0
    """SIGKILL, and a new process whose clock is hours wrong."""
    RESTART_STORE = "restart store", Target.SERVER, FaultGroup.RESTART, 45.0
    """The store is killed and started again."""
    RESTART_BROKER = "restart broker", Target.SERVER, FaultGroup.RESTART, 60.0
    """The broker is killed and started again."""
    FORGET = "forget", Target.SERVER, FaultGroup.OTHER, 40.0
    """Redis loses every key."""
    EVICT = "evict", Target.SERVER, FaultGroup.OTHER, 30.0
    """Redis loses some keys."""
    FILL_DISK = "fill disk", Target.SERVER, FaultGroup.OTHER, 60.0
    """The disk of the store is full for a while."""
    MEMORY_ALARM = "memory alarm", Target.SERVER, FaultGroup.OTHER, 60.0
    """The broker is short of memory and reads nothing from connections that publish."""
    FULL_LETTERS = "full dead letters", Target.SERVER, FaultGroup.OTHER, 45.0
    """The queue of dead letters refuses messages."""
    FULL_RETRIES = "full retries", Target.SERVER, FaultGroup.OTHER, 45.0
    """The queues of delayed messages refuse messages: a failed one cannot wait there, and must stay where it is."""

    def __new__(cls, label: str, target: Target, group: FaultGroup, every_s: float) -> Self:
        """The label is the value."""
        kind = object.__new__(cls)
        kind._value_ = label
        kind.target, kind.group, kind.every_s = target, group, every_s
        return kind


@dataclass(frozen=True, slots=True)
class Fault:
    """A planned fault.

    Attributes:
        at_s: when, in seconds from the start.
        kind: what.
        slot: the number of the consumer it hits; the number after the last one means the producer.
        for_s: how long it lasts, in seconds.
        point: the crash point.
        nth: at which passing of the point.
        amount: seconds of a wrong clock, seconds of delay, or the share of keys that is lost.
    """

    at_s: float
    kind: FaultKind
    slot: int = 0
    for_s: float = 0.0
    point: str = ""
    nth: int = 1
    amount: float = 0.0


class Mishap(Enum):
    """An incident outside the schedule."""

    STARVED = "starved"
    """The OS did not schedule a consumer for a while, without a planned pause."""
    ENDED = "ended by itself"
    """A consumer ended without a kill or a signal."""


@dataclass(frozen=True, slots=True)
class Incident:
    """One incident.

    Attributes:
        at: its start, on the system's monotonic clock, in seconds.
        until: its end; the same as `at` for an incident without a length.
        process: the process that it hit; empty: all of them, or the producer.
        point: the crash point at which it happened, if any.
        detail: more, for people.
    """

    kind: FaultKind | Mishap
    at: float
    until: float
    process: str = ""
    point: str = ""
    detail: str = ""

    @property
    def lasted_s(self) -> float:
        """Its length in seconds."""
        return self.until - self.at
