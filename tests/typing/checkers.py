"""mypy and pyright as a user runs them, without the settings of this repository."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.project.house import ROOT


@dataclass
class Report:
    """What a type checker says of files.

    Attributes:
        errors: the codes of the errors, by file name and line.
        shown: what `reveal_type` shows, by file name and line.
    """

    errors: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    shown: dict[tuple[str, int], str] = field(default_factory=dict)

    def of(self, file: Path) -> dict[int, set[str]]:
        return {line: codes for (name, line), codes in self.errors.items() if name == file.name}


def run_mypy(files: Sequence[Path]) -> Report:
    command = (sys.executable, "-m", "mypy", "--config-file=", "--strict", "--output=json")
    # A cache of its own: the settings differ from those of `make types`.
    printed = _run(*command, f"--cache-dir={ROOT / '.mypy_cache' / 'typing'}", *map(str, files))
    report = Report()
    for line in printed.splitlines():
        said = json.loads(line)
        at = (Path(said["file"]).name, said["line"])
        if said["severity"] == "error":
            report.errors[at].add(said["code"])
        elif said["message"].startswith("Revealed type is "):
            report.shown[at] = said["message"].removeprefix("Revealed type is ").strip('"')
    return report


def run_pyright(files: Sequence[Path]) -> Report:
    if importlib.util.find_spec("pyright") is None or shutil.which("node") is None:
        pytest.skip("pyright cannot run: install Node.js (the command node), and pip install pyright")
    printed = _run(
        sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *map(str, files)
    )
    report = Report()
    for said in json.loads(printed)["generalDiagnostics"]:
        at = (Path(said["file"]).name, said["range"]["start"]["line"] + 1)
        if said["severity"] == "error":
            report.errors[at].add(said["rule"])
        elif said["message"].startswith("Type of "):
            report.shown[at] = said["message"].partition(" is ")[2].strip('"')
    return report


def _run(*command: str) -> str:
    environ = {
        **os.environ,
        # The node of this machine: the wheel of pyright would download another.
        "PYRIGHT_PYTHON_GLOBAL_NODE": "1",
        "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
        "PYTHONPATH": str(ROOT),
    }
    done: Any = subprocess.run(command, check=False, cwd=ROOT, env=environ, capture_output=True, text=True)
    # 1: there are errors.
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert not done.stderr, done.stderr
    return str(done.stdout)
