"""Runs: the keys that handlers of this process run now, and the starts that would tell of its death."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias
from weakref import ref

from idempotent.checkers.protocol import ClaimProtocol
from idempotent.checkers.sql.failures import noted
from idempotent.checkers.sql.store import SqlStore
from idempotent.claims import ClaimRequest, Decision, Lapsed, Verdict
from idempotent.errors import StoreError, StoreUnavailableError
from idempotent.forks import generation
from idempotent.keys import Key
from idempotent.stores.sql.cursor import DriverConnection
from idempotent.values import changed

if TYPE_CHECKING:
    from idempotent.checkers.sql.handler_transaction import HandlerTransaction
    from idempotent.checkers.sql.recorders import ClaimRecorder

RETRY_S: Final = 1.0
"""Seconds after which a copy of a message asks again whether its key is free, at the latest."""
_Claims: TypeAlias = Callable[[Sequence[ClaimRequest]], list[Decision]]
_Change: TypeAlias = Callable[[DriverConnection, Mapping[Key, int]], object]
"""Changes the notes of starts of these keys, before which there were so many without an end."""
_RUNS_HERE: Final = Decision(Verdict.IN_PROGRESS, retry_after_s=RETRY_S, reason="this process runs it")


class _Run:
    """What stands for one run: of a message, or of a group.

    Attributes:
        transaction: its transaction, once it has one.
        reference: itself, without keeping it.
    """

    __slots__ = ("__weakref__", "reference", "transaction")

    def __init__(self) -> None:
        self.transaction: HandlerTransaction | None = None
        self.reference: Final = ref(self)

    @property
    def is_over(self) -> bool:
        """Whether its transaction has ended."""
        return self.transaction is not None and self.transaction.has_ended


class Runs:
    """The runs of a transactional checker, which has no leases.

    A copy of a message whose handler runs in this process is IN_PROGRESS at once: to wait for the key's lock it would
    take a connection, and the place of another handler.

    Where no lease tells that a process died, the start of a redelivered message is noted before its key is claimed, in
    a transaction of its own, and forgotten when the run ends. A start without an end is a death. The start of a first
    delivery is not noted, so its death is not counted.

    Args:
        protocol: remembers the ends that the store did not record.
        store: the database.
        recorder: keeps the failures.
    """

    def __init__(self, protocol: ClaimProtocol, store: SqlStore, recorder: ClaimRecorder) -> None:
        self._protocol = protocol
        self._store = store
        self._recorder = recorder
        # By the hash of the key. Changing a dict's entry is atomic: no message takes a lock. A run that nobody has any
        # more is over: an exception of a signal handler may come before it is forgotten here.
        self._open: dict[bytes, ref[_Run]] = {}
        self._generation = generation.number

    def begin(self, requests: Sequence[ClaimRequest], claim: _Claims) -> list[Decision]:
        """Claim the keys that this process does not run, by `claim`; decisions in the order of the requests.

        What may have killed a process is left as it is, if its request says so.

        Raises:
            StoreError: the database did not answer; nothing is claimed.
        """
        if self._generation != generation.number:  # what runs is the parent's
            self._open, self._generation = {}, generation.number
        run = _Run()
        reference, enter = run.reference, self._open.setdefault
        mine = [
            each
            for each in requests
            if enter(each.key.hash, reference) is reference or self._replaces(each.key.hash, run)
        ]
        again = [each.key for each in mine if each.redelivered]
        answers: list[Decision] = []
        give_back: Callable[[], object] | None = None
        try:
            if again:
                answers, give_back = self._begin_again(mine, claim)
            elif mine:
                answers = claim(mine)
        finally:
            claims = {
                each.key: answer.claim for each, answer in zip(mine, answers, strict=False) if answer.claim
            }
            if len(claims) < len(mine):
                self._forget([each.key for each in mine if each.key not in claims], run)
        if claims:
            run.transaction = next(iter(claims.values())).transaction
            ended = [key for key in again if key in claims]
            run.transaction.on_end = partial(self._end, run, list(claims), ended, give_back)
        if len(mine) == len(requests):
            return answers
        decisions = {each.key.hash: answer for each, answer in zip(mine, answers, strict=True)}
        return [decisions.get(request.key.hash, _RUNS_HERE) for request in requests]

    @contextmanager
    def kept(self, keys: Sequence[Key]) -> Iterator[None]:
        """Let nobody in this process claim these keys meanwhile, although their transaction ends."""
        run = _Run()
        self._open.update((key.hash, run.reference) for key in keys)
        try:
            yield
        finally:
            self._forget(keys, run)

    def _begin_again(
        self, requests: Sequence[ClaimRequest], claim: _Claims
    ) -> tuple[list[Decision], Callable[[], object] | None]:
        """Claim what does not wait because its process died, and note the starts of what is redelivered.

        Returns:
            The decisions, and what is left to call when the transaction ends: while it is open it has SQLite's file.
        """
        again = [request for request in requests if request.redelivered]
        leaving = {request.key.hash for request in again if request.on_lapsed is Lapsed.LEAVE}
        deaths = self.note([request.key for request in again], leaving)
        left = leaving.intersection(deaths)
        rest = [request for request in requests if request.key.hash not in left] if left else requests
        decisions: dict[bytes, Decision] = {}
        try:
            if rest:
                answers = claim(rest)
                decisions = {each.key.hash: answer for each, answer in zip(rest, answers, strict=True)}
        finally:
            rest_again = [each.key for each in rest if each.redelivered]
            give_back = partial(self._give_back, rest_again, dict(decisions), deaths)
            has_file = self._store.has_one_writer and any(each.claim for each in decisions.values())
            if not has_file:
                give_back()
        for hashed, died in deaths.items():
            decisions[hashed] = (
                Decision(Verdict.IN_PROGRESS, deaths=died)
                if hashed in left
                else _after_deaths(decisions[hashed], died)
            )
        return [decisions[request.key.hash] for request in requests], give_back if has_file else None

    def note(self, keys: Sequence[Key], leaving: Collection[bytes]) -> Mapping[bytes, int]:
        """Note that these start. Returns the deaths of those that have died, by hash; `leaving` are not noted then."""
        for key in keys:
            self._protocol.settle_run_end(noted(key))  # this process lives: a start of its own is no death
        deaths: dict[bytes, int] = {}
        note = partial(self._recorder.failures.note_starts, deaths=deaths, unless_died=leaving)
        try:
            self._store.connections.run(note, keys)
        except BaseException as error:
            if not isinstance(error, StoreError) or isinstance(error, StoreUnavailableError):
                for key in keys:  # one whose deaths were not read was not noted
                    if key.hash in deaths and not (deaths[key.hash] and key.hash in leaving):
                        self._owe(self._recorder.failures.undo_starts, key, deaths[key.hash])
            raise
        return {hashed: died for hashed, died in deaths.items() if died}

    def _give_back(
        self, keys: Sequence[Key], decisions: Mapping[bytes, Decision], deaths: Mapping[bytes, int]
    ) -> None:
        """Forget the starts of what does not run. Another delivery, which may, keeps the starts before it."""
        ended: dict[Key, int] = {}
        undone: dict[Key, int] = {}
        for key in keys:
            decision = decisions.get(key.hash)
            if decision is None or decision.verdict is Verdict.IN_PROGRESS:
                undone[key] = deaths.get(key.hash, 0)
            elif decision.claim is None:
                ended[key] = 0
        if undone:
            self._tell(self._recorder.failures.undo_starts, undone)
        if ended:
            self._tell(self._recorder.failures.end_starts, ended)

    def _replaces(self, hashed: bytes, run: _Run) -> bool:
        """Take the place of a run that is over."""
        while (reference := self._open.setdefault(hashed, run.reference)) is not run.reference:
            other = reference()
            if other is not None and not other.is_over:
                return False
            self._open.pop(hashed, None)
        return True

    def _end(
        self,
        run: _Run,
        keys: Sequence[Key],
        noted_keys: Sequence[Key],
        give_back: Callable[[], object] | None,
    ) -> None:
        """End the runs of a transaction, and give back what has not run."""
        self._forget(keys, run)
        if noted_keys:
            self._tell(self._recorder.failures.end_starts, dict.fromkeys(noted_keys, 0))
        if give_back is not None:
            give_back()

    def _tell(self, change: _Change, starts: Mapping[Key, int]) -> None:
        """Tell the store what became of starts. What it does not record, this process owes it."""
        try:
            self._store.connections.run(change, starts)
        except BaseException as error:
            for key, died in starts.items():
                self._owe(change, key, died)
            if not isinstance(error, Exception):
                raise

    def _owe(self, change: _Change, key: Key, died: int) -> None:
        self._protocol.owe_run_end(noted(key), partial(self._store.connections.run, change, {key: died}))

    def _forget(self, keys: Sequence[Key], run: _Run) -> None:
        for key in keys:
            if self._open.get(key.hash) is run.reference:
                del self._open[key.hash]


def _after_deaths(decision: Decision, deaths: int) -> Decision:
    """The decision about a key that was acquired, if it was, with the deaths before it."""
    if decision.claim is None:
        return decision
    return changed(decision, deaths=deaths, claim=changed(decision.claim, deaths=deaths))
