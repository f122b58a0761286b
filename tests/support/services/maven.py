"""Programs from Maven Central and the like, fetched once per machine and version."""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


def fetched(pom: Path, name: str, run: Callable[[list[str]], Any]) -> Path:
    """The folder with the programs that a pom.xml names, and with what they need.

    Args:
        pom: what to fetch; another text is another folder.
        name: how the folder's name begins.
        run: runs a command, and raises if it fails.
    """
    return kept(
        name,
        pom.read_bytes(),
        lambda folder: run(["mvn", "-q", "-B", "-f", str(pom), _COPY, f"-DoutputDirectory={folder}"]),
    )


def kept(name: str, of: bytes, fill: Callable[[Path], Any]) -> Path:
    """A folder that is filled once per machine.

    Args:
        name: how the folder's name begins.
        of: what it is made of; other bytes are another folder.
        fill: fills a new folder, and raises if it fails.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "idempotent-tests"
    folder = cache / f"{name}-{hashlib.sha256(of).hexdigest()[:12]}"
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f"{name}.lock"):
        if not folder.exists():
            fresh = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=cache))
            try:
                fill(fresh)
                # Appears whole or not at all.
                fresh.rename(folder)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
