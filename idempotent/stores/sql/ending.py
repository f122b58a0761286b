"""Which statements end a transaction, or may end it, told by their first words."""

from __future__ import annotations

import re
from typing import Final

# ROLLBACK TO a savepoint does not end a transaction.
# https://dev.mysql.com/doc/refman/8.0/en/implicit-commit.html
_ENDS: Final = (
    r"commit|rollback(?!\s+(?:work\s+)?to\b)|abort|end|begin|start\s+transaction|prepare\s+transaction"
)
_IMPLICIT: Final = (
    r"|create(?!\s+temporary\s+table)|alter|drop(?!\s+temporary\s+table)|truncate|rename|grant|revoke|lock\s+tables?"
    r"|unlock\s+tables?|analyze|optimize|repair|flush|set\s+(?:session\s+|@@(?:session\.)?)?autocommit"
)
_BLANK: Final = r"(?:[\s;]|/\*(?:[^*]|\*(?!/))*\*/|--[^\n]*\n|#[^\n]*\n)*"
ENDING: Final = {
    "mysql": re.compile(rf"{_BLANK}(?:{_ENDS}{_IMPLICIT})\b", re.IGNORECASE),
    "postgresql": re.compile(rf"{_BLANK}(?:{_ENDS})\b", re.IGNORECASE),
    "sqlite": re.compile(rf"{_BLANK}(?:{_ENDS})\b", re.IGNORECASE),
}
"""Statements that end a transaction, by dialect."""
HIDING: Final = {"mysql": re.compile(rf"{_BLANK}(?:call|execute)\b", re.IGNORECASE)}
"""Statements that run others, which may end the transaction. PostgreSQL refuses that inside a transaction."""
