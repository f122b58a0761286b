"""AdapterContract: what a worker relies on in every adapter, as tests that you subclass."""

from __future__ import annotations

from idempotent.testing.adapter_contract.base import DEADLINE_S, until
from idempotent.testing.adapter_contract.contract import AdapterContract

__all__ = ["DEADLINE_S", "AdapterContract", "until"]
