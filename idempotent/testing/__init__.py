"""For tests of checkers, adapters and consumers: contracts, crash points, lapsed leases, a generator of duplicates."""

from __future__ import annotations

import sys

if "pytest" in sys.modules:
    # Lets a failing assert of a contract show its values; must come before the modules are imported.
    sys.modules["pytest"].register_assert_rewrite(
        f"{__name__}.adapter_contract", f"{__name__}.checker_contract"
    )

from idempotent.testing.adapter_contract import AdapterContract
from idempotent.testing.checker_contract import Capability, CheckerContract
from idempotent.testing.crashpoints import (
    AckPoints,
    CrashPlan,
    abandon_claim,
    arm,
    around,
    crash_points,
    reach,
)
from idempotent.testing.duplicates import with_duplicates

__all__ = [
    "AckPoints",
    "AdapterContract",
    "Capability",
    "CheckerContract",
    "CrashPlan",
    "abandon_claim",
    "arm",
    "around",
    "crash_points",
    "reach",
    "with_duplicates",
]
