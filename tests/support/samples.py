"""Which of a test's many alike cases are in the gate."""

from zlib import crc32


def is_sampled(test: str, index: int, cases: int, every: int) -> bool:
    """Whether a case is one of each `every`: always the same ones, at least one, and others for each test.

    Args:
        test: the test's name.
        index: the place of the case among those of the test.
        cases: how many there are.
        every: how many of them stand for one another.
    """
    return index % every == crc32(test.encode()) % min(every, cases)
