"""FaultKind and Fault: what is done to consumers, connections, brokers and stores."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FaultKind(Enum):
    """One way to do harm."""

    KILL = "kill"
    """SIGKILL for a consumer, at a random moment."""
    KILL_AT_POINT = "kill at a point"
    """SIGKILL for a consumer, at a named crash point."""
    PAUSE = "pause"
    """SIGSTOP for a consumer, longer than its lease; then SIGCONT."""
    PAUSE_AT_POINT = "pause at a point"
    """The same, at a named crash point."""
    CUT_STORE = "cut store"
    """All connections of one consumer to the store are cut."""
    CUT_BROKER = "cut broker"
    """All connections of one consumer, or of the producer, to the broker are cut."""
    LOSE_STORE_ANSWER = "lose store's answer"
    """The store acts, and the connection is cut before its answer arrives. Where it can be told: to COMMIT."""
    LOSE_STORE_QUESTION = "lose store's question"
    """The same packet never reaches the store, and the connection is cut."""
    LATE_STORE_QUESTION = "late store's question"
    """The same packet reaches the store only after its client has lost the connection, and perhaps looked again."""
    LOSE_BROKER_ANSWER = "lose broker's answer"
    """The broker acts, and the connection is cut before its answer arrives."""
    STALL_STORE = "stall store"
    """Nothing passes between one consumer and the store, longer than a lease."""
    STALL_BROKER = "stall broker"
    """Nothing passes between one consumer, or the producer, and the broker."""
    DELAY_STORE = "delay store"
    """Each packet of one consumer to the store is late."""
    DELAY_BROKER = "delay broker"
    """Each packet of one consumer, or of the producer, to the broker is late."""
    SHIFT_CLOCK = "shift clock"
    """A consumer is killed, and started again with a clock that is hours wrong."""
    RESTART_STORE = "restart store"
    """The store is killed and started again."""
    RESTART_BROKER = "restart broker"
    """The broker is killed and started again."""
    FORGET = "forget"
    """Redis loses every key."""
    EVICT = "evict"
    """Redis loses some keys."""
    FILL_DISK = "fill disk"
    """The disk of the store is full for a while."""

    @property
    def for_consumers_alone(self) -> bool:
        """Whether the producer is spared."""
        return self not in {
            FaultKind.CUT_BROKER,
            FaultKind.LOSE_BROKER_ANSWER,
            FaultKind.STALL_BROKER,
            FaultKind.DELAY_BROKER,
        }


@dataclass(frozen=True, slots=True)
class Fault:
    """One of them, planned.

    Attributes:
        at_s: when, in seconds from the start.
        kind: what.
        slot: whose: the number of a consumer; the one after the last is the producer.
        for_s: how long.
        point: at which crash point.
        nth: at which passing of it.
        amount: how much: seconds of a wrong clock, seconds of delay, share of keys that is lost.
    """

    at_s: float
    kind: FaultKind
    slot: int = 0
    for_s: float = 0.0
    point: str = ""
    nth: int = 1
    amount: float = 0.0
