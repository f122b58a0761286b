"""What happens to tables of a lake without any kill: `python -m tests.adapters.spark.sinks.scenarios ARGUMENTS`."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from idempotent.adapters.spark import IdempotentRun, Publication, StoreConfig, foreach_batch
from idempotent.migrations import upgrade
from tests.adapters.spark.programs import report
from tests.adapters.spark.support import sessions
from tests.adapters.spark.support.frames import numbered

_PATIENCE_S = 600.0


class Waits:
    """For `mapInArrow`: says that it is there, and goes on when it may."""

    def __init__(self, folder: Path) -> None:
        self.there, self.may = folder / "there", folder / "may"
        folder.mkdir()

    def __call__(self, batches: Any) -> Iterator[Any]:
        self.there.touch()
        wait_for(self.may)
        yield from batches


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


class Lake:
    """Tables of one format."""

    def __init__(
        self, sink: str, folder: str, store: dict[str, str], settings: dict[str, str], mode: str
    ) -> None:
        self.spark = getattr(sessions, mode)(**sessions.QUICK | settings)
        self.sink, self.folder, self.store = sink, Path(folder), StoreConfig(**store)
        self.frame = numbered(self.spark, rows=100, partitions=2)

    def table(self, name: str) -> str:
        if self.sink == "iceberg":
            self.spark.sql(f"CREATE TABLE IF NOT EXISTS ice.db.{name} (k STRING, v BIGINT) USING iceberg")
            return f"ice.db.{name}"
        return name if name == "by_name" else f"{self.folder}/tables/{name}"

    def rows(self, name: str) -> Any:
        where = self.table(name)
        if "/" in where:
            return self.spark.read.format("delta").load(where)
        # Else what another thread has committed may not be seen: Iceberg's catalog keeps tables for a while.
        self.spark.catalog.refreshTable(where)
        return self.spark.table(where)

    def put(self, publication: Publication, frame: Any, name: str) -> None:
        getattr(publication, self.sink)(frame, self.table(name))

    def begin(self, consumer: str, run_id: str = "r1", **options: Any) -> IdempotentRun:
        return IdempotentRun.begin(self.store, consumer=consumer, run_id=run_id, **options)

    def publish(
        self,
        name: str,
        to: Callable[[Publication, Any], object] | None = None,
        run_id: str = "r1",
        source: Any = None,
        table: str | None = None,
        **options: Any,
    ) -> bool:
        with self.begin(name, run_id, **options) as run:
            new = run.dedup(self.frame if source is None else source, key="k", unique=True)
            staged = run.stage(new, f"{self.folder}/staging/{name}")
            put = to or (lambda publication, staged: self.put(publication, staged, table or name))
            return run.publish(lambda publication: put(publication, staged))

    def a_table_by_its_name(self) -> Any:
        return [self.publish("by_name"), self.publish("by_name"), self.rows("by_name").count()]

    def a_driver_that_was_paused_in_its_commit(self) -> Any:
        """Its tasks wait until another driver has published and committed; then it commits."""
        waits, said = Waits(self.folder / "waits"), []
        self.publish("paused", run_id="r0", source=self.frame.where("v < 0"))

        def first() -> None:
            try:
                self.publish(
                    "paused", lambda publication, staged: self.put(publication, slow(waits, staged), "paused")
                )
            except Exception as error:
                said.append(str(error))

        thread = threading.Thread(target=first)
        thread.start()
        wait_for(waits.there)
        done = self.publish("paused", takeover=True)
        waits.may.touch()
        thread.join(_PATIENCE_S)
        found = self.rows("paused")
        return [done, found.count(), found.distinct().count(), *said]

    def other_writers_meanwhile(self) -> Any:
        """What others append while the rows are written is no reason to fail, and stays."""
        waits = Waits(self.folder / "others")
        self.publish("shared", run_id="r0", source=self.frame.where("v < 10"))
        other = self.spark.createDataFrame([("other", 1)], self.frame.schema)

        def write() -> None:
            wait_for(waits.there)
            self.publish("others", source=other, table="shared")
            waits.may.touch()

        thread = threading.Thread(target=write)
        thread.start()
        self.publish(
            "shared", lambda publication, staged: self.put(publication, slow(waits, staged), "shared")
        )
        thread.join(_PATIENCE_S)
        return sorted(row["v"] for row in self.rows("shared").collect())

    def a_schema_that_changed_between_two_attempts(self) -> Any:
        self.publish("changed", run_id="r0", source=self.frame.where("v < 10"))
        said, note = "", ""
        try:
            self.publish(
                "changed",
                lambda publication, staged: self.put(
                    publication, staged.withColumn("more", staged.v), "changed"
                ),
            )
        except Exception as error:
            said, (note,) = str(error), error.__notes__
        with self.begin("changed") as run:
            prepared = run.is_prepared
        return [said, note, prepared, self.publish("changed"), self.rows("changed").count()]

    def two_frames_to_one_table(self) -> Any:
        def twice(publication: Publication, staged: Any) -> None:
            self.put(publication, staged.where("v < 50"), "twice")
            self.put(publication, staged.where("v >= 50"), "twice")

        return self.publish("twice", twice)

    def an_abort_with_the_rows_taken_away(self) -> Any:
        def fails(publication: Publication, staged: Any) -> None:
            self.put(publication, staged, "aborted")
            raise RuntimeError

        try:
            self.publish("aborted", fails)
        except RuntimeError:
            where = self.table("aborted")
            self.spark.sql(f"DELETE FROM {where if self.sink == 'iceberg' else f'delta.`{where}`'}")
        with self.begin("aborted") as run:
            run.abort(unpublished=True)
        return [self.publish("aborted"), self.rows("aborted").count()]

    def a_relative_path(self) -> Any:
        where = os.path.relpath(f"{self.folder}/tables/relative")

        def put(publication: Publication, staged: Any) -> None:
            publication.delta(staged, where)

        return [self.publish("relative", put), self.spark.read.format("delta").load(where).count()]

    def two_ledgers_with_the_same_names(self) -> Any:
        """Of two teams, or the second one in the place of the first: rows are not left out without a word."""
        self.publish("ledgers", source=self.frame.where("v < 10"))
        first, self.store = self.store, StoreConfig(f"sqlite:///{self.folder}/other.db")
        upgrade(self.store.url)
        try:
            return self.publish("ledgers", source=self.frame.where("v >= 10"))
        finally:
            self.store = first

    def a_table_that_was_rolled_back(self) -> Any:
        """After the rows of a run were in it, and before the run is begun again: they are in it again."""
        self.publish("back", run_id="r0", source=self.frame.where("v < 10"))
        before = self.spark.table(f"{self.table('back')}.refs").collect()[0]["snapshot_id"]

        def fails(publication: Publication, staged: Any) -> None:
            self.put(publication, staged, "back")
            raise RuntimeError

        try:
            self.publish("back", fails)
        except RuntimeError:
            self.spark.sql(f"CALL ice.system.rollback_to_snapshot('db.back', {before})")
        return [self.rows("back").count(), self.publish("back"), self.rows("back").count()]

    def a_stream(self) -> Any:
        """Two batches, and the first of them once more."""
        numbers: list[Any] = []

        def handler(staged: Any, publication: Publication) -> None:
            numbers.append(publication.batch_id)
            self.put(publication, staged, "stream")

        staging = f"{self.folder}/staging/stream"
        process = foreach_batch(self.store, sink_id="stream", key="k", handler=handler, staging=staging)
        for batch in (0, 1, 0):
            process(self.frame.where(f"v % 2 = {batch}"), batch)
        return [numbers, self.rows("stream").count()]


def slow(waits: Waits, frame: Any) -> Any:
    """In one task: others, for which it waits, need a processor too."""
    return frame.coalesce(1).mapInArrow(waits, frame.schema)


def main() -> None:
    arguments = json.loads(sys.argv[1])
    lake = Lake(**arguments)
    if arguments["mode"] == "connect":
        report(lake.a_table_by_its_name, lake.other_writers_meanwhile)
        return
    report(
        lake.a_table_by_its_name,
        lake.a_driver_that_was_paused_in_its_commit,
        lake.other_writers_meanwhile,
        lake.a_schema_that_changed_between_two_attempts,
        lake.two_frames_to_one_table,
        lake.an_abort_with_the_rows_taken_away,
        lake.a_stream,
        lake.two_ledgers_with_the_same_names,
        lake.a_table_that_was_rolled_back if lake.sink == "iceberg" else lake.a_relative_path,
    )


if __name__ == "__main__":
    main()
