"""Natural batching: claims and completions of lone messages that arrive during a statement share the next one."""

from idempotent.checkers.combining.combiner import Combiner
from idempotent.checkers.combining.waiters import COMPLETE_ALONE, ParkedWaiter, Threads

__all__ = ["COMPLETE_ALONE", "Combiner", "ParkedWaiter", "Threads"]
