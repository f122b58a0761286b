"""JSON Lines, from a file or standard input."""

from __future__ import annotations

from idempotent.adapters.files.adapter import STANDARD_INPUT, FileAdapter, FileCounts

__all__ = ["STANDARD_INPUT", "FileAdapter", "FileCounts"]
