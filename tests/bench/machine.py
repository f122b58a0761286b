"""What a benchmark ran on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def machine() -> str:
    """What this ran on, in words."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return f"{os.cpu_count()} cores, {model}, {platform.system()}, Python {platform.python_version()}"
