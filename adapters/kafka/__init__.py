"""Kafka."""

from __future__ import annotations

from idempotent.adapters.kafka.adapter import KafkaAdapter
from idempotent.adapters.kafka.loops import from_confluent, settle
from idempotent.adapters.kafka.options import Ordering, Semantics

__all__ = ["KafkaAdapter", "Ordering", "Semantics", "from_confluent", "settle"]
