"""Publication: the time between PREPARED and COMMITTED, in which a run's output becomes visible."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from secrets import token_hex
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from idempotent.adapters.spark.keys import names_of
from idempotent.adapters.spark.staging import Staged
from idempotent.adapters.spark.tables import Inserts, in_utc
from idempotent.adapters.spark.tasks.handle import RunHandle
from idempotent.errors import ConfigurationError

# Hadoop takes what follows for a path, whatever characters it has. A store of objects has options behind `?`.
_AS_SPARK_READS: Final = re.compile(r"(file|hdfs|viewfs):(//[^/]*)?")

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyspark.sql import DataFrame


@dataclass(slots=True)
class Publication:
    """What a publishing function works with.

    Publish idempotently: an interrupted publication is repeated with the same run_id, attempt and staged files. A
    driver that was fenced may still be publishing them, so never delete or replace what has been published.

    Attributes:
        run_id: of the run.
        generation: of the run.
        attempt: names the attempt whose rows are published: the same in every repetition.
        staged: what that attempt has staged.
        output_ref: where the output is; set it, and the ledger stores it at the commit.
        batch_id: in `foreach_batch`, Spark's number of the micro-batch, which grows; else None: runs may be published
            in any order, so no number of theirs says what a table has.
        handle: of the run.
    """

    run_id: str
    generation: int
    attempt: str
    staged: Sequence[Staged]
    output_ref: str | None = None
    batch_id: int | None = None
    handle: RunHandle | None = field(default=None, repr=False)

    @property
    def files(self) -> list[str]:
        """URIs of all staged files."""
        return [file for staged in self.staged for file in staged.files]

    def copy_to(self, folder: str) -> list[str]:
        """Put a copy of each staged file into a folder, under a name that is the same in every repetition.

        It runs on the driver, on any file system that pyarrow knows. A copy that exists is written again with the same
        content, and no file is deleted.

        Args:
            folder: a path or URI; created if missing. What follows `file:`, `hdfs:` and `viewfs:` is a name as it is,
                as Spark has it; pyarrow reads other URIs.

        Returns:
            The paths of the copies.

        Raises:
            ConfigurationError: pyarrow knows no file system for the folder or for a staged file.
        """
        target, base = _file_system(_uri(folder))
        target.create_dir(base, recursive=True)
        copies = [
            f"{base}/{self.attempt}-{number:05}{PurePosixPath(file).suffix}"
            for number, file in enumerate(self.files)
        ]
        for file, copy in zip(self.files, copies, strict=True):
            _put(file, target, copy)
        return copies

    def jdbc(
        self, df: DataFrame, table: str, *, key: str | Sequence[str] = (), url: str | None = None
    ) -> None:
        """Insert the rows whose keys a table of MySQL, MariaDB, PostgreSQL or SQLite does not have.

        Each task inserts its rows, in transactions of the run's `chunk`, by the Python driver that the ledger uses: no
        JAR is needed. A row whose key is there stays as it is. Instants are written in UTC.

        Args:
            df: what `stage` returned, or what was made of it, the same in every repetition.
            table: its name, or schema.name. It is there already, with the columns of the rows.
            key: columns of a unique key of the table that are NOT NULL; default: its primary key.
            url: of the database, as in `StoreConfig`; default: the ledger's.

        Raises:
            ConfigurationError: the URL is of no such database; or the table is missing, lacks a column, or has no such
                unique key.
            StoreError: the database failed, or did not answer; within Spark's exception if its tasks met it.
        """
        if self.handle is None or (url is None and self.handle.store.is_redis):
            raise ConfigurationError("the ledger is in no SQL database: give jdbc(url=), where the table is")
        rows = in_utc(df)
        inserts = Inserts(
            url or self.handle.store.url, table, tuple(rows.columns), tuple(names_of(key)), self.handle.chunk
        )
        rows.foreachPartition(inserts.checked())


def _put(file: str, target: FileSystem, copy: str) -> None:
    from pyarrow.fs import LocalFileSystem, copy_files

    source, path = _file_system(file)
    if not isinstance(target, LocalFileSystem):
        copy_files(path, copy, source_filesystem=source, destination_filesystem=target)
        return
    # A local file is visible while it is written, so it is written under a name that readers of folders ignore.
    name = PurePosixPath(copy)
    hidden = str(name.with_name(f"_{token_hex(8)}-{name.name}"))
    copy_files(path, hidden, source_filesystem=source, destination_filesystem=target)
    target.move(hidden, copy)


def _uri(folder: str) -> str:
    """A folder as pyarrow reads it, which takes `#` for the end of a path, and `?` for the begin of options."""
    found = _AS_SPARK_READS.match(folder)
    return folder if found is None else found[0] + quote(folder[found.end() :])


def _file_system(path: str) -> tuple[FileSystem, str]:
    import pyarrow as pa
    from pyarrow.fs import FileSystem, LocalFileSystem

    if "://" not in path and not path.startswith("file:"):
        from pathlib import Path

        return LocalFileSystem(), str(Path(path).absolute())
    try:
        # Spark leaves letters beyond ASCII in a URI, which pyarrow does not take.
        system, name = FileSystem.from_uri(quote(path, safe=string.punctuation))
    except (pa.ArrowException, ValueError) as error:
        raise ConfigurationError(
            f"pyarrow has no file system for {path}: publish the staged files with another client, or publish where "
            f"they are, in output_ref ({error})"
        ) from error
    return system, name
