"""Traces: everything that was recorded about a message, to find out what happened to it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from idempotent.torture.examination.effects import Effect
from idempotent.torture.journal import What

_LATEST: Final = 12
_TOLD: Final = ("outcome", "error", "attempt", "fence", "position")


def traces(
    journals: Iterable[Path], ledger: Iterable[Effect], suspects: Collection[str], began: float
) -> Mapping[str, list[str]]:
    """The latest lines about each of these messages, in the order of time.

    Args:
        journals: the consumers' files.
        ledger: the effects, from journals or the database.
        suspects: ids of messages, or their positions.
        began: when the run began, on the clock of the journals.
    """
    found: dict[str, list[tuple[float, str]]] = {suspect: [] for suspect in suspects}
    for line in _lines(journals, ledger) if found else ():
        for name in found.keys() & {line.get("id"), line.get("position")}:
            found[name].append((line["at"], _described(line, began)))
    return {suspect: [line for _, line in sorted(lines)[-_LATEST:]] for suspect, lines in found.items()}


def _lines(journals: Iterable[Path], ledger: Iterable[Effect]) -> Iterable[Mapping[str, Any]]:
    for effect in ledger:
        yield {"what": What.EFFECT.value, **asdict(effect)}
    for journal in journals:
        for text in journal.read_text().splitlines() if journal.exists() else ():
            line = json.loads(text)
            if line["what"] != What.EFFECT.value:  # it is in the ledger, too
                yield line


def _described(line: Mapping[str, Any], began: float) -> str:
    more = "  ".join(f"{name} {line[name]}" for name in _TOLD if line.get(name))
    return f"{line['at'] - began:7.2f} s  consumer {line['process']}  {line['what']}  {more}".rstrip()
