"""CheckerContract: every promise of a checker, as tests that you subclass."""

from __future__ import annotations

from idempotent.testing.checker_contract.base import Capability
from idempotent.testing.checker_contract.contract import CheckerContract

__all__ = ["Capability", "CheckerContract"]
