"""Natural batching: claims and completions of lone messages that arrive during a statement share the next one."""

from idempotent.checkers.batching.batcher import Call
from idempotent.checkers.batching.combiner import COMPLETE_ALONE, Combiner

__all__ = ["COMPLETE_ALONE", "Call", "Combiner"]
