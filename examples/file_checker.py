"""A checker of your own: keys live in a folder of files, shared by the threads and processes of one machine.

It shows the hooks of docs/writing-a-checker.md over a store that cannot do anything conditionally: a lock makes read,
decide and write one step, and a rename makes the write whole or not at all.

Use it for a few workers on one local disk. Not for several machines or a network folder, whose locks and clocks
differ; not for many messages a second, as each change waits for the disk; and not on Windows, which has no flock.
Where it fits, SqlChecker over SQLite does the same without a line of yours.
"""

import fcntl
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from idempotent import Message, Registry
from idempotent.checkers import AbstractIdempotentChecker
from idempotent.checkers.judging import Change, StoredKey, done_expiry, judge
from idempotent.claims import (
    NOBODY,
    UNKNOWN_EFFECT,
    Claim,
    ClaimRequest,
    Completion,
    Decision,
    Failure,
    KeyStatus,
    Released,
)
from idempotent.errors import StoreError, StoreUnavailableError
from idempotent.keys import Key


@dataclass
class Record:
    """What a file holds. Without a status the key is free; its fence and attempts are kept."""

    text: str = ""
    status: KeyStatus | None = None
    owner: bytes | None = None
    fence: int = 0
    lease_end: float | None = None
    expiry: float = 0.0
    deaths: int = 0
    fingerprint: bytes | None = None
    result: bytes | None = None
    attempts: int = 0
    error: str | None = None
    failed_at: float = 0.0

    @classmethod
    def load(cls, path: Path) -> Self:
        try:
            fields = json.loads(path.read_bytes())
        except FileNotFoundError:
            return cls()
        except ValueError as error:
            raise StoreError(f"{path} is not a record of a key.") from error
        for name in ("owner", "fingerprint", "result"):
            fields[name] = None if fields[name] is None else bytes.fromhex(fields[name])
        fields["status"] = None if fields["status"] is None else KeyStatus(fields["status"])
        return cls(**fields)

    def save(self, path: Path) -> None:
        draft = path.with_name(f"{path.name[:2]}.draft")  # one per lock: what a crash leaves is overwritten
        with draft.open("wb") as file:
            file.write(json.dumps(asdict(self), default=bytes.hex).encode())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # or a power cut may undo the rename
        finally:
            os.close(folder)

    def stored(self, now: float) -> StoredKey | None:
        if self.status is None or self.owner is None:
            return None
        rest_s = math.inf if self.lease_end is None else self.lease_end - now
        return StoredKey(
            self.status,
            self.owner,
            self.fence,
            rest_s,
            fingerprint=self.fingerprint,
            result=self.result,
            reason=self.error,
            deaths=self.deaths,
        )

    def in_progress_by(self, claim: Claim) -> bool:
        return self.status is not None and self.status.in_progress and self.owner == claim.owner

    def free(self) -> None:
        self.status = self.owner = self.lease_end = self.fingerprint = self.result = None


@contextmanager
def os_errors_translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailableError(f"The folder of keys failed: {error}") from error


@contextmanager
def opened(path: Path) -> Iterator[Record]:
    """The record in a file, under its lock. What the block changes in it is stored when the block ends."""
    # Lock files are never deleted, or two processes could lock two files of the same name.
    with os_errors_translated(), path.with_name(f"{path.name[:2]}.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # belongs to this opening of the file, so it keeps out threads too
        try:
            record = Record.load(path)
            before = replace(record)
            yield record
            if record != before:
                record.save(path)
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # closing is not enough if a fork copied the file meanwhile


class FileChecker(AbstractIdempotentChecker):
    """Keeps keys in `folder`. It must exist: a disk that is not mounted shall not look like an empty store."""

    def __init__(
        self,
        folder: str | Path,
        *,
        lease_s: float | None = 30.0,
        retention_s: float = 14 * 86400,
        dead_retention_s: float | None = None,
    ) -> None:
        super().__init__(lease_s=lease_s, retention_s=retention_s, dead_retention_s=dead_retention_s)
        self.folder = Path(folder)

    def _claim(self, request: ClaimRequest) -> Decision:
        with opened(self._path(request.key)) as record:
            now = time.time()
            judged = judge(record.stored(now), request, fence=max(int(now * 1e6), record.fence + 1))
            if judged.change is Change.PARK:
                self._kill(record, now)
                record.error = UNKNOWN_EFFECT
            elif judged.change is Change.STORE:
                record.text, record.status, record.owner = request.key.text, request.status, request.owner
                record.fence, record.fingerprint, record.result = (
                    judged.claim.fence,
                    request.fingerprint,
                    None,
                )
                record.lease_end, record.expiry = self._lease_end(now), now + self.retention_s
                record.deaths = judged.claim.deaths
            return judged.decision

    def _complete(self, completion: Completion) -> bool:
        with opened(self._path(completion.claim.key)) as record:
            if record.status is None or record.owner != completion.claim.owner:
                return False
            record.expiry = done_expiry(record.status, record.expiry, time.time(), self.retention_s)
            record.status = KeyStatus.DONE
            if completion.result is not None:
                record.result = completion.result
            return True

    def _release(self, claim: Claim, failure: Failure | None) -> Released:
        with opened(self._path(claim.key)) as record:
            if not record.in_progress_by(claim):
                return Released(owned=False)
            if failure is None:
                record.free()
                return Released(owned=True)
            record.attempts += 1
            record.error, record.failed_at = failure.error, time.time()
            dead = failure.kills(record.attempts)
            if dead:
                self._kill(record, record.failed_at)
            else:
                self._free(record, failure.delay_s(record.attempts))
            return Released(owned=True, attempts=record.attempts, dead=dead)

    def _free(self, record: Record, delay_s: float) -> None:
        record.free()
        if delay_s:
            record.status, record.owner = KeyStatus.IN_PROGRESS, NOBODY
            record.lease_end = record.failed_at + delay_s

    def _kill(self, record: Record, now: float) -> None:
        record.status = KeyStatus.DEAD
        record.expiry = math.inf if self.dead_retention_s is None else now + self.dead_retention_s

    def _renew_many(self, claims: Sequence[Claim]) -> list[bool]:
        return [self._renew(claim) for claim in claims]

    def _renew(self, claim: Claim) -> bool:
        with opened(self._path(claim.key)) as record:
            if not record.in_progress_by(claim):
                return False
            record.lease_end = self._lease_end(time.time())
            return True

    def _garbage_collect(self, limit: int) -> int:
        deleted = 0
        with os_errors_translated():
            paths = [path for path in self.folder.iterdir() if path.suffix == ".json"]
        for path in paths:
            if deleted >= limit:
                break
            with opened(path) as record:
                if self._forgettable(record, time.time()):
                    path.unlink(missing_ok=True)
                    deleted += record.status is not None
        return deleted

    def _forgettable(self, record: Record, now: float) -> bool:
        if record.status is None:
            return record.failed_at + self.retention_s <= now
        if record.status is KeyStatus.IN_PROGRESS_PARK:
            return False
        held = record.status.in_progress and (record.lease_end is None or record.lease_end > now)
        return record.expiry <= now and not held

    def _lease_end(self, now: float) -> float | None:
        return None if self.lease_s is None else now + self.lease_s

    def _path(self, key: Key | None) -> Path:
        assert key is not None, "a claim without a key never gets here"
        return self.folder / f"{key.hash.hex()}.json"


if __name__ == "__main__":
    registry = Registry()
    with tempfile.TemporaryDirectory() as folder:

        @registry.consumer("orders.paid", checker=FileChecker(folder))
        def on_paid(message: Message) -> None:
            print("paid", message.id)

        for _ in range(2):
            print(on_paid(Message("orders.paid", id="4711")).outcome)
        registry.close()
