"""How far random tests go: as far as is promised where `CI=true`, and a part of the way at a desk."""

import os

from tests.support.services import is_required


def examples(promised: int, *, part: int = 10) -> int:
    """How many examples to try.

    Args:
        promised: the number where `CI=true`.
        part: at a desk, one of so many is tried.
    """
    return promised if is_required(os.environ, option=False) else promised // part
