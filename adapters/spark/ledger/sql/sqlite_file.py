"""SqliteFile: notices when another file replaces the ledger's."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from sqlalchemy import Engine

from idempotent.errors import StoreReplacedError


class SqliteFile:
    """A connection keeps the file that it opened: what it writes is lost once that file is deleted or replaced.

    Args:
        path: of the ledger's file.
    """

    def __init__(self, path: Path) -> None:
        """Remember no file yet."""
        self._path = path
        self._seen: tuple[int, int] | None = None

    @classmethod
    def of(cls, engine: Engine) -> Self | None:
        """The file of an SQLite engine; None for another database, or a URI filename."""
        name = engine.url.database
        if engine.dialect.name != "sqlite" or not name or name.startswith("file:"):
            return None
        return cls(Path(name).absolute())

    def was_replaced(self) -> bool:
        """Whether the path has another file than at the last call.

        Raises:
            StoreReplacedError: the file was there at the last call, and is gone.
        """
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            if self._seen is None:
                return False
            raise StoreReplacedError(
                f"the ledger's file {self._path} is gone: restore it, or begin new runs in another ledger"
            ) from None
        now = (stat.st_dev, stat.st_ino)
        before, self._seen = self._seen, now
        return before not in (None, now)
