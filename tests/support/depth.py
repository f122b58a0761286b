"""How far tests go: those with random or many alike cases go a part of the way, but for `make test-all`."""

import os
from zlib import crc32


def examples(promised: int, *, part: int = 10) -> int:
    """How many examples to try.

    Args:
        promised: the number where `IDEMPOTENT_TEST_EXAMPLES=all`, as `make slow` sets it.
        part: elsewhere, one of so many is tried.
    """
    return promised if os.environ.get("IDEMPOTENT_TEST_EXAMPLES") == "all" else promised // part


def is_sampled(test: str, index: int, cases: int, every: int) -> bool:
    """Whether a case is one of each `every`: always the same ones, at least one, and others for each test.

    Args:
        test: the test's name.
        index: the place of the case among those of the test.
        cases: how many there are.
        every: how many of them stand for one another.
    """
    return index % every == crc32(test.encode()) % min(every, cases)
