"""Tells from the text of a statement whether it ends the transaction: always, perhaps, or not."""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import lru_cache
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
_ENDING: Final = {
    "mysql": re.compile(rf"{_BLANK}(?:{_ENDS}{_IMPLICIT})\b", re.IGNORECASE),
    "postgresql": re.compile(rf"{_BLANK}(?:{_ENDS})\b", re.IGNORECASE),
    "sqlite": re.compile(rf"{_BLANK}(?:{_ENDS})\b", re.IGNORECASE),
}
# Behind other statements, in a comment that MySQL runs, within a compound statement.
_WITHIN: Final = (
    r"\b(?:commit|rollback(?!\s+(?:work\s+)?to\b)|abort|begin|start\s+transaction|prepare\s+transaction)\b"
)
_HIDING: Final = {
    "mysql": re.compile(rf"\A{_BLANK}(?:call|execute)\b|/\*M?!|\bautocommit\b|{_WITHIN}", re.IGNORECASE),
    "postgresql": re.compile(rf"{_WITHIN}|;\s*(?:end\b|/\*|--)", re.IGNORECASE),
}
_LONGEST_KEPT: Final = 2000


class TransactionEnd(Enum):
    """What a statement does to its transaction."""

    NOT = auto()
    PERHAPS = auto()
    """It calls a procedure, or has a word such as COMMIT behind its beginning, which may be data."""
    ALWAYS = auto()


def classify_transaction_end(dialect: str, statement: str) -> TransactionEnd:
    """Whether a statement ends the transaction in the database of this dialect."""
    # Applications send the same few statements again and again.
    return _known(dialect, statement) if len(statement) <= _LONGEST_KEPT else _ends(dialect, statement)


def _ends(dialect: str, statement: str) -> TransactionEnd:
    if _ENDING[dialect].match(statement):
        return TransactionEnd.ALWAYS
    hiding = _HIDING.get(dialect)
    return TransactionEnd.PERHAPS if hiding is not None and hiding.search(statement) else TransactionEnd.NOT


_known: Final = lru_cache(maxsize=1024)(_ends)
