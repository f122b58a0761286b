"""Programs from Maven Central, fetched once per machine and version."""

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
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "idempotent-tests"
    jars = cache / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    if jars.exists():
        return jars
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f"{name}.lock"):
        if not jars.exists():
            fresh = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=cache))
            try:
                run(["mvn", "-q", "-B", "-f", str(pom), _COPY, f"-DoutputDirectory={fresh}"])
                # Appears whole or not at all.
                fresh.rename(jars)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
    return jars


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
