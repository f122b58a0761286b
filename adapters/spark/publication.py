"""Publication: the time between PREPARED and COMMITTED, in which a run's output becomes visible."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from secrets import token_hex
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from idempotent.adapters.spark.keys import names_of
from idempotent.adapters.spark.ledger.urls import open_ledger
from idempotent.adapters.spark.staging import Staged
from idempotent.adapters.spark.tables import Inserts, in_utc
from idempotent.adapters.spark.tasks.handle import RunHandle
from idempotent.errors import ConfigurationError

# Hadoop takes what follows for a path, whatever characters it has. A store of objects has options behind `?`.
_AS_SPARK_READS: Final = re.compile(r"(file|hdfs|viewfs):(//[^/]*)?")

_TRIES: Final = 10
_ANSWER_S: Final = 60.0
# In Iceberg's errors when another writer has committed between a look at the table and the commit, or the scan.
_CHANGED_MEANWHILE: Final = ("ValidationException", "scan consistency")

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyspark.sql import DataFrame, SparkSession


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
        batch_id: in `foreach_batch` Spark's number of the micro-batch, which grows. None elsewhere: runs have no order.
        handle: of the run.
    """

    run_id: str
    generation: int
    attempt: str
    staged: Sequence[Staged]
    output_ref: str | None = None
    batch_id: int | None = None
    handle: RunHandle | None = field(default=None, repr=False)
    _frames: dict[str, DataFrame] = field(default_factory=dict, init=False, repr=False)

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
        self._renew()
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
            ConfigurationError: no such database, or the table is missing, lacks a column, or has no such unique key;
                or, within Spark's exception, it takes two keys of the rows for one, and a row would be lost.
            StoreError: the database failed, or did not answer; within Spark's exception if its tasks met it.
        """
        handle, rows = self.handle, in_utc(df)
        if handle is None or (url is None and handle.store.is_redis):
            raise ConfigurationError("the ledger is in no SQL database: give jdbc(url=), where the table is")
        into = Inserts(url or handle.store.url, table, (*rows.columns,), (*names_of(key),), handle.chunk)
        into = replace(into.checked(), answer_s=max(handle.lease_s, _ANSWER_S))
        self._renew()
        rows.foreachPartition(into)

    def delta(self, df: DataFrame, table: str) -> None:
        """Append the rows to a table of Delta Lake, in one commit, unless a commit of this run is there.

        The commit bears the run as `txnAppId` and its generation as `txnVersion`; in `foreach_batch` the consumer, and
        the batch's number. Delta compares them in the commit, so it does not matter how many drivers try.

        Args:
            df: what `stage` returned, or what was made of it, the same in every repetition.
            table: its name, or, with a slash in it, its path. Delta makes it if it is not there.

        Raises:
            ConfigurationError: another frame was published to this table, or it has a commit of another run with these
                names. Else what Spark raises.
        """
        app, version, mark = self._transaction(df, table)
        spark, is_path = df.sparkSession, "/" in table
        if not is_path and not spark.catalog.tableExists(table):
            # The commit that makes a table by its name bears no userMetadata.
            spark.createDataFrame([], df.schema).write.format("delta").mode("ignore").saveAsTable(table)
        options = {"txnAppId": app, "txnVersion": str(version), "userMetadata": mark}
        writer = df.write.format("delta").mode("append").options(**options)
        (writer.save if is_path else writer.saveAsTable)(table)
        # The form of a name, delta.`path`, takes absolute paths alone.
        escaped = table.replace("\\", "\\\\").replace("'", "\\'")
        place = f"'{escaped}'" if is_path else table
        history = (spark.sql(f"DESCRIBE HISTORY {place}{some}") for some in (" LIMIT 100", ""))
        found = any(not commits.where(commits["userMetadata"] == mark).isEmpty() for commits in history)
        self._is_this(mark, [mark if found else None], table)

    def iceberg(self, df: DataFrame, table: str) -> None:
        """Append the rows to a table of Apache Iceberg, in one snapshot, unless one of this run is in its history.

        The snapshot's summary bears the run as `idempotent-run`. Iceberg refuses the commit if rows were added since
        the run was looked for, and then it is looked for again.

        Args:
            df: as for `delta`.
            table: its name, with that of the catalog, and no branch. It is there already.

        Raises: as `delta`.
        """
        from pyspark.sql import functions as F

        app, version, mark = self._transaction(df, table)
        spark = df.sparkSession
        if any(spark.conf.get(name, None) for name in ("spark.wap.branch", "spark.wap.id")):
            raise ConfigurationError(
                "the session writes to a branch or to a snapshot that is published later (spark.wap.branch or "
                "spark.wap.id), in which the run would not be found again: unset it"
            )
        options = {
            "isolation-level": "serializable",
            "snapshot-property.idempotent-run": app,
            "snapshot-property.idempotent-version": str(version),
            "snapshot-property.idempotent-mark": mark,
        }
        for tries_left in reversed(range(_TRIES)):
            try:
                head, marks = _run_in(spark, table, app, version)
                if self._is_this(mark, marks, table):
                    return
                # Overwrites no row, and is validated, as an append would not be.
                validated = options if head is None else {**options, "validate-from-snapshot-id": head}
                df.writeTo(table).options(**validated).overwrite(F.expr("false"))
            except Exception as error:
                if not tries_left or not any(each in str(error) for each in _CHANGED_MEANWHILE):
                    raise
            else:
                return

    def _renew(self) -> None:
        """Renew the lease, before something is published: a driver that stood still may have lost its run.

        Raises:
            RunFencedError: another driver has taken the run over, or somebody has aborted it.
        """
        if self.handle is not None:
            with open_ledger(self.handle.store) as ledger:
                ledger.renew(self.handle.ref, self.handle.lease_s)

    def _transaction(self, df: DataFrame, table: str) -> tuple[str, int, str]:
        """What names the commit in the table, a number that grows with it, and what only this run's commit bears."""
        if self.handle is None or self._frames.setdefault(table, df) is not df:
            raise ConfigurationError(
                f"run {self.run_id!r} publishes two frames to {table}, and the second would be taken for a repetition "
                "of the first: publish their union"
            )
        self._renew()
        ref = self.handle.ref
        consumer, mark = quote(ref.consumer, safe=""), f"idempotent-run {ref.token}"
        if self.batch_id is not None:
            return consumer, self.batch_id * 1000 + self.generation, mark
        return f"{consumer}/{quote(self.run_id, safe='')}", self.generation, mark

    def _is_this(self, mark: str, marks: Sequence[str | None], table: str) -> bool:
        """Whether the table has a commit with the names of this run, which must be this run's."""
        if marks and mark not in marks:
            raise ConfigurationError(
                f"{table} has a commit of another run {self.run_id!r} of this consumer, for which these rows would be "
                "taken: of another ledger, or of this one, which has forgotten it; or the table's history is too "
                "short to show this run's. If the table has exactly these rows, call "
                "run.ledger.commit(run.handle.ref); else abort this run, and begin it under a run_id, or a consumer, "
                "that the table does not know"
            )
        return bool(marks)


def _run_in(spark: SparkSession, table: str, app: str, version: int) -> tuple[str | None, list[str | None]]:
    """The newest snapshot of an Iceberg table, and the marks of those of a run that led to it."""
    from pyspark.sql import functions as F

    spark.catalog.refreshTable(table)
    main = spark.table(f"{table}.refs").where("name = 'main'").select("snapshot_id").collect()
    summary = F.col("summary")
    is_run = (summary["idempotent-run"] == app) & (summary["idempotent-version"].cast("long") >= version)
    found = spark.table(f"{table}.snapshots").select(
        "snapshot_id",
        "parent_id",
        is_run,
        summary["idempotent-mark"],
    )
    snapshots = {number: rest for number, *rest in found.collect()}
    head = at = main[0][0] if main else None
    marks = []
    # A snapshot that the table was rolled back from is kept, and its rows are not in the table.
    while at in snapshots:
        at, is_ours, mark = snapshots[at]
        if is_ours:
            marks.append(mark)
    return None if head is None else str(head), marks


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
