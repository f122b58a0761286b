"""How far random tests go: as far as is promised in `make test-all`, and a part of the way elsewhere."""

import os


def examples(promised: int, *, part: int = 10) -> int:
    """How many examples to try.

    Args:
        promised: the number where `IDEMPOTENT_TEST_EXAMPLES=all`, as `make slow` sets it.
        part: elsewhere, one of so many is tried.
    """
    return promised if os.environ.get("IDEMPOTENT_TEST_EXAMPLES") == "all" else promised // part
