"""The programs beside the product can be deleted: what is left collects, and its tests pass."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.house import FLOORS, ROOT

BESIDE = FLOORS[-1].parts
# Of every floor a part that needs few servers; the pages are left out, because they link to the programs.
CHOSEN = (
    *sorted(path.name for path in (ROOT / "tests").glob("test_*.py")),
    "processing",
    "worker",
    "cli/test_help.py",
    "project/test_house.py",
    "project/test_packaging.py",
    "project/test_seams.py",
)


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository without them."""
    copy = tmp_path_factory.mktemp("rest") / "repository"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(".?*", "__pycache__"))
    for part in BESIDE:
        shutil.rmtree(copy / "idempotent" / part)
        shutil.rmtree(copy / "tests" / part)
    return copy


def run_pytest(folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", *arguments],
        check=False,
        cwd=folder,
        # The package that is installed, or another clone, must not fill the gaps.
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout[-5000:]}{done.stderr[-5000:]}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_them_every_test_can_be_collected(rest: Path) -> None:
    run_pytest(rest, "--collect-only", "-q", "tests")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_without_them_the_tests_of_the_product_pass(rest: Path) -> None:
    run_pytest(rest, "-m", "not slow", *(f"tests/{chosen}" for chosen in CHOSEN))
