"""Publication: the time between PREPARED and COMMITTED, in which a run's output becomes visible."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Publication:
    """What a publishing block knows.

    Attributes:
        run_id: publish idempotently by it: a block that is interrupted runs again, with the same run_id.
        generation: of the run.
        output_ref: say here where the output is, for the ledger.
    """

    run_id: str
    generation: int
    output_ref: str | None = None
