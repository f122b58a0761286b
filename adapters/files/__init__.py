"""JSON Lines, from a file or standard input."""

from __future__ import annotations

from idempotent.adapters.files.adapter import FileAdapter, FileCounts
from idempotent.adapters.files.lines import STANDARD_INPUT

__all__ = ["STANDARD_INPUT", "FileAdapter", "FileCounts"]
