"""Publication: the time between PREPARED and COMMITTED, in which a run's output becomes visible."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Publication:
    """What a publishing block works with.

    Attributes:
        run_id: of the run. Publish idempotently by it: an interrupted block runs again with the same run_id.
        generation: of the run.
        output_ref: where the output is; set it, and the ledger stores it at the commit.
    """

    run_id: str
    generation: int
    output_ref: str | None = None
