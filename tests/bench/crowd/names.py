"""The names and sizes of the crowds, as the targets look for them."""

from __future__ import annotations

from typing import Final

BARE: Final = "bare coroutine"
HOP: Final = "thread hop, there and back"
SYNC: Final = "synchronous"
APART: Final = "combine=False"
BY_HAND: Final = "AsyncSession by hand"
WORKER: Final = "Worker"
TASKS: Final = 50
THREADS: Final = 64
ASLEEP: Final = 500


def with_callers(where: str) -> str:
    """The place of a crowd's figures: apart from those of the same store in the other parts, of other rounds."""
    return f"{where} with many callers"
