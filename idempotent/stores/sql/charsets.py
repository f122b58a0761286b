"""Which texts a connection can send, and its server store.

The character set of a connection is the application's choice. A character that it lacks would make the driver or the
server refuse a whole statement, for the sake of a text that only people read.
"""

from __future__ import annotations

import re
from typing import Any, Final

_BEYOND_3_BYTES: Final = re.compile("[\U00010000-\U0010ffff]")


def mysql_storable(connection: Any, text: str) -> str:
    """The text with `?` for each character that a PyMySQL connection's character set lacks."""
    encoding = connection.encoding
    known: str = text.encode(encoding, "replace").decode(encoding)
    return known if connection.charset == "utf8mb4" else _BEYOND_3_BYTES.sub("?", known)


def postgresql_storable(connection: Any, text: str) -> str:
    """The text with `?` for each character that a psycopg connection, or its database, may lack."""
    in_utf8 = connection.info.parameter_status("server_encoding") == "UTF8"
    encoding = connection.info.encoding if in_utf8 else "ascii"
    return text.encode(encoding, "replace").decode(encoding)


def sqlite_storable(connection: Any, text: str) -> str:
    """The text: SQLite stores every printable one."""
    del connection
    return text


def mysql_utf8(connection: Any) -> None:
    """Make UTF-8 the character set of a PyMySQL connection."""
    if connection.charset != "utf8mb4":
        connection.set_character_set("utf8mb4")


def postgresql_utf8(connection: Any) -> None:
    """Make UTF-8 the character set of a psycopg connection in autocommit."""
    if connection.info.encoding != "utf-8":
        connection.execute("SET client_encoding TO 'UTF8'")


def sqlite_utf8(connection: Any) -> None:
    """Do nothing: SQLite knows only UTF-8 here."""
