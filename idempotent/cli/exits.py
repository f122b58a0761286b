"""The exit codes, which scripts rely on: one list for the code, `--help` and the docs."""

from __future__ import annotations

from enum import IntEnum

from idempotent.errors import AdapterError, ConfigurationError, IdempotentError, StoreError


class ExitCode(IntEnum):
    """The exit status of a command."""

    OK = 0
    """Done, and nothing needs attention."""
    ATTENTION = 1
    """Done, but something needs attention: rejected, dead, failed, different, not found, left alone."""
    USAGE = 2
    """The command line is wrong."""
    CONFIGURATION = 3
    """Bad configuration: URL, table, module, checker name, missing extra."""
    STORE = 4
    """The store is unreachable, busy, or without its tables."""
    BROKER = 5
    """The broker, or the file used instead, cannot be used."""
    INTERRUPTED = 130
    """Ctrl-C; completed work stays done."""

    @classmethod
    def of(cls, error: IdempotentError) -> ExitCode:
        """The code for an error that ended the command."""
        if isinstance(error, StoreError):
            return cls.STORE
        if isinstance(error, AdapterError):
            return cls.BROKER
        return cls.CONFIGURATION if isinstance(error, ConfigurationError) else cls.ATTENTION


def epilog(*examples: str) -> str:
    """The text below a command's help: examples, then the exit codes."""
    codes = (
        "0 ok, 1 something to look at (rejected, dead, different, not found), 2 usage, 3 configuration, 4 store, "
        "5 broker, 130 Ctrl-C"
    )
    # Click leaves the lines of a paragraph as they are that begins with this character.
    return "\n".join(
        ["\b", "Examples:", *(f"  $ {example}" for example in examples), "", f"Exit codes: {codes}"]
    )
