"""Outbox: what a handler publishes commits with its effect. Needs SQLAlchemy."""

from idempotent.outbox.outbox import Outbox
from idempotent.outbox.relays.relay import OnParked, Relay
from idempotent.schema import OutboxTables, outbox_tables

__all__ = ["OnParked", "Outbox", "OutboxTables", "Relay", "outbox_tables"]
