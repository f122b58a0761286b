"""The consuming process, the one that is killed: `python -m idempotent.demo.child`, with pipes to the broker."""

from __future__ import annotations

import os
import sys
from typing import IO

from idempotent.demo.consumers import Job, consume
from idempotent.demo.pipe import PipeAdapter, receive


def main() -> None:
    """Learn the job from the pipe, and do it."""
    source, sink = _pipes()
    try:
        job: Job = receive(source)
        consume(job, PipeAdapter(source, sink))
    except (EOFError, BrokenPipeError):
        sys.exit("the broker is gone")


def _pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Standard input and output, which nobody else may use from here on."""
    source = os.fdopen(os.dup(0), "rb")
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anybody prints goes to the log
    return source, sink


if __name__ == "__main__":
    main()
