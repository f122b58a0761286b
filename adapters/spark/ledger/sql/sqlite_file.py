"""SqliteFile: whether the file behind a path is still the same one."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from sqlalchemy import Engine

from idempotent.errors import StoreReplacedError


class SqliteFile:
    """An open connection goes on with a file that was deleted or replaced under it, and what it writes is lost.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        """Look at nothing yet."""
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
        """Whether it is another file than the last time.

        Raises:
            StoreReplacedError: it was there, and is gone.
        """
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            if self._seen is None:
                return False
            raise StoreReplacedError(f"the ledger's file {self._path} is gone") from None
        now = (stat.st_dev, stat.st_ino)
        before, self._seen = self._seen, now
        return before not in (None, now)
