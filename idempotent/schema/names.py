"""The names of the tables, and the widths of their columns."""

from __future__ import annotations

import re
from typing import Final

from idempotent.errors import ConfigurationError

DEFAULT_TABLE: Final = "deduplicate_tbl"
"""The default table of checkers and migrations."""

MAX_TABLE_NAME: Final = 40
"""Longest table name in characters: ``ix_<table>_failures_expires_at`` must fit PostgreSQL's limit of 63."""

OUTPUT_REF_LENGTH: Final = 1000
"""Width of ``output_ref``, the location of a run's output, in characters."""

KEY_TEXT_LENGTH: Final = 255
"""Width of ``k``, the readable text of a key, in characters. The key itself is ``key_hash``."""

ERROR_TEXT_LENGTH: Final = 1000
"""Width of ``last_error`` in characters."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def validate_table_name(name: str) -> str:
    """Return `name` if it is a valid name for the tables.

    A valid name has 1 to 40 ASCII letters, digits and underscores, does not start with a digit, and has no schema
    prefix, because the tables live in the connection's schema.

    Raises:
        ConfigurationError: the name is invalid. The message states the rule.
    """
    given: object = name
    if not isinstance(given, str) or not _NAME.fullmatch(given) or len(given) > MAX_TABLE_NAME:
        raise ConfigurationError(
            f"invalid table name {name!r}: use 1 to {MAX_TABLE_NAME} ASCII letters, digits and underscores, "
            "not starting with a digit, without a schema prefix"
        )
    return name


def failures_name(table: str) -> str:
    """Name of the failures table that belongs to `table`."""
    return f"{table}_failures"


def offsets_name(table: str) -> str:
    """Name of the offsets table that belongs to `table`."""
    return f"{table}_offsets"


def runs_name(table: str) -> str:
    """Name of the table of runs that belongs to `table`."""
    return f"{table}_runs"


def run_claims_name(table: str) -> str:
    """Name of the table of runs' claims that belongs to `table`."""
    return f"{table}_run_claims"


def outbox_name(table: str) -> str:
    """Name of the outbox that belongs to `table`."""
    return f"{table}_outbox"


def version_name(table: str) -> str:
    """Name of the table in which the packaged migrations record the revision of `table`."""
    return f"{table}_alembic_version"
