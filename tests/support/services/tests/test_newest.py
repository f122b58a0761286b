"""The tests run on the newest servers, or without any."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.services.tests.running import ROOT

ANY = "tests/support/services/tests/test_services.py::test_the_mysql_database_is_empty_and_utf8mb4"


def run(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`python -m COMMAND`, as in CI."""
    return subprocess.run(
        [sys.executable, "-m", *command],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"CI": "true", "PYTEST_ADDOPTS": ""} | environ,
        timeout=300,
    )


@pytest.mark.slow
def test_without_servers_a_test_that_needs_one_is_skipped_in_ci_too() -> None:
    done = run("pytest", "--no-servers", "-p", "no:cacheprovider", ANY)
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout
    assert "needs a server, and --no-servers starts none" in done.stdout


def test_newest_servers_that_were_not_downloaded_fail_the_tests(tmp_path: Path) -> None:
    done = run("tests.support.services.newest", sys.executable, "-c", "", IDEMPOTENT_NEWEST=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.endswith("make servers-newest\n")
    assert "Traceback" not in done.stderr
