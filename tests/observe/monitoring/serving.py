"""A worker or a relay as a process of its own, with metrics."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving(folder: Path, *words: str) -> Iterator[str]:
    """`host:port` of the metrics of `idempotent WORDS`, which runs in a folder with its modules."""
    process = subprocess.Popen(
        [sys.executable, "-m", "idempotent", *words, "--metrics-port", "0"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        line = next(line for line in process.stderr if "Metrics: " in line)
        yield line.split("Metrics: http://")[1].split("/metrics")[0]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
