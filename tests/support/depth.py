"""How far random tests go: as far as is promised where `CI=true`, and a tenth of the way at a desk."""

import os

from tests.support.services import is_required


def examples(promised: int) -> int:
    """How many examples to try."""
    return promised if is_required(os.environ, option=False) else promised // 10
