"""A commit's message says what changes and why; `.ci/commits` checks the new ones."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.project.house import ROOT

HOOK = ROOT / ".ci" / "commit-msg"
COMMITS = ROOT / ".ci" / "commits"
GOOD = "Hold an in-flight duplicate\n\nIts owner may still fail.\n"


def check(tmp_path: Path, message: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "message"
    file.write_text(message)
    return run(tmp_path, str(HOOK), str(file))


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    quiet = {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
    }
    people = {
        f"GIT_{who}_{what}": "a@b.example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    # A hook's variables would lead git to another repository.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(
        command,
        check=False,
        cwd=folder,
        env={**clean, **quiet, **people},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """With one commit whose message is an old, bad one."""
    folder = tmp_path / "repository"
    folder.mkdir()
    run(folder, "git", "init", "--quiet")
    commit(folder, "tests: some fixes.")
    return folder


def commit(folder: Path, message: str) -> str:
    done = run(folder, "git", "commit", "--quiet", "--allow-empty", "--message", message)
    assert done.returncode == 0, done.stderr
    return run(folder, "git", "rev-parse", "HEAD").stdout.strip()


@pytest.mark.parametrize(
    "message",
    [
        GOOD,
        "Embed the script\n\nReading it from a file failed in a zip.\n",
        f"{'Hold ' + 'a' * 67}\n\nWhy.\n",
        f"{GOOD}# Please enter the commit message for your changes.\n",
    ],
)
def test_a_good_message_passes(tmp_path, message):
    assert check(tmp_path, message).returncode == 0


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (f"{'Hold ' + 'a' * 68}\n\nWhy.\n", "73 characters"),
        ("Hold the duplicate.\n\nWhy.\n", "period"),
        ("hold the duplicate\n\nWhy.\n", "begin with a verb"),
        ("Tests: hold the duplicate\n\nWhy.\n", "begin with a verb"),
        ("Duplicates\n\nWhy.\n", "begin with a verb"),
        ("Held the duplicate and fixed it\nWhy.\n", "second line"),
        ("Holding the duplicate\n\nWhy.\n", "'Holding' is not imperative"),
        ("Fixed the duplicate\n\nWhy.\n", "'Fixed' is not imperative"),
        ("Holds the duplicate\n\nWhy.\n", "'Holds' is not imperative"),
        ("Hold the duplicate\n", "no body"),
        ("Hold the duplicate\n\n# Please enter the commit message for your changes.\n", "no body"),
        ("Hold the duplicate\n# ------------------------ >8 ------------------------\n\n+line\n", "no body"),
        ("\n", "begin with a verb"),
    ],
)
def test_a_bad_message_is_refused_with_the_reason(tmp_path, message, complaint):
    done = check(tmp_path, message)
    assert done.returncode == 1
    assert complaint in done.stderr


def test_commits_before_the_revision_are_excused(repository):
    old = run(repository, "git", "rev-parse", "HEAD").stdout.strip()
    commit(repository, GOOD)
    assert "1 checked, 0 wrong" in run(repository, str(COMMITS), old).stdout
    commit(repository, "Fixed it")
    done = run(repository, str(COMMITS), old)
    assert done.returncode == 1
    assert "2 checked, 1 wrong" in done.stdout


def test_a_shallow_and_detached_clone_is_checked_as_far_as_it_goes(repository, tmp_path):
    commit(repository, GOOD)
    clone = tmp_path / "clone"
    run(tmp_path, "git", "clone", "--quiet", "--depth", "1", repository.as_uri(), str(clone))
    run(clone, "git", "checkout", "--quiet", "--detach")
    done = run(clone, str(COMMITS))
    assert done.returncode == 0, done.stderr
    assert "1 checked, 0 wrong" in done.stdout


@pytest.mark.parametrize("place", ["other history", "no history", "no repository"])
def test_where_the_revision_cannot_be_known_nothing_is_checked(repository, tmp_path, place):
    folder = repository if place == "other history" else tmp_path / place
    folder.mkdir(exist_ok=True)
    if place == "no history":
        run(folder, "git", "init", "--quiet")
    done = run(folder, str(COMMITS))
    assert done.returncode == 0, done.stderr
    assert "not checked" in done.stdout
