"""Wrong clocks, by libfaketime."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import pytest

_NAME: Final = "libfaketime.so.1"
# Where Debian, Fedora, Arch and an own build put it.
_FOLDERS: Final = (
    *(str(folder) for folder in sorted(Path("/usr/lib").glob("*/faketime"))),
    "/usr/lib64/faketime",
    "/usr/lib/faketime",
    "/usr/local/lib/faketime",
)


def no_wrong_clocks() -> str | None:
    """Why clocks cannot be shifted on this machine; None: they can."""
    if _library() is not None:
        return None
    return "libfaketime is not installed (Debian: faketime)" if sys.platform == "linux" else "only on Linux"


def shifted_clock(by_s: float) -> dict[str, str]:
    """Environment variables for a process whose clock is wrong by `by_s` seconds. Its monotonic clock stays right."""
    library = _library()
    assert library is not None
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME": f"{by_s:+.0f}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",  # the same in older versions
        "FAKETIME_NO_CACHE": "1",
    }


def movable_clock(path: Path, environment: pytest.MonkeyPatch) -> Path:
    """Let the servers that start from now on have a clock that differs by what this file says, in seconds: `-3600`."""
    path.write_text("+0\n")
    for parent in path.parents:  # a server may be another user's
        if (mode := parent.stat().st_mode) & 0o011 != 0o011:
            parent.chmod(mode | 0o011)
    for name, each in shifted_clock(0.0).items():
        if name != "FAKETIME":
            environment.setenv(name, each)
    environment.setenv("FAKETIME_TIMESTAMP_FILE", str(path))
    return path


def sleep_by_the_right_clock() -> None:
    """Call it in such a process: libfaketime 0.9.10 breaks `time.sleep` of Python 3.11 and later."""

    def sleep(seconds: Any) -> None:
        threading.Event().wait(seconds)

    time.sleep = sleep


def _library() -> Path | None:
    found = (Path(folder, _NAME) for folder in _FOLDERS)
    return next((path for path in found if path.exists()), None)
