"""AdapterContract: what a worker relies on in every adapter, as a test class to derive from."""

from __future__ import annotations

from idempotent.testing.adapter_contract.receiving import ReceivingContract
from idempotent.testing.adapter_contract.settling import OutagesContract, SettlingContract


class AdapterContract(ReceivingContract, SettlingContract, OutagesContract):
    """The tests that prove an adapter. pytest collects them from your subclass; see `AdapterContractBase`."""
