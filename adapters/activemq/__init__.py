"""ActiveMQ Classic, over STOMP 1.2."""

from __future__ import annotations

from idempotent.adapters.activemq.adapter import StompAdapter
from idempotent.adapters.activemq.loops import from_stomp
from idempotent.adapters.activemq.options import AckMode

__all__ = ["AckMode", "StompAdapter", "from_stomp"]
