"""Without the libraries of the extra, the error is the line that installs them."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import sys
sys.modules["pyarrow"] = None
from idempotent.errors import MissingExtraError
try:
    from idempotent.adapters.spark import idempotent_partitions
except MissingExtraError as error:
    print(error)
"""


def test_a_missing_pyarrow_is_named_with_the_line_to_type():
    done = subprocess.run([sys.executable, "-c", _PROGRAM], check=True, capture_output=True, text=True)
    said = 'pyarrow is not installed. Type: pip install "idempotent-consumer[spark]"'
    assert done.stdout.strip() == said, done.stderr
