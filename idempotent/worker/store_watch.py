"""A worker's threads for its stores.

StoreWatch asks whether they take keys, ExpiredKeys deletes expired ones, and StoreSurvey counts those that wait.
"""

from __future__ import annotations

import math
import random
import secrets
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final, Self

from idempotent.admin import OWN, StoreStats, WaitingKeys
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.repeating import RepeatingThread
from idempotent.claims import ClaimRequest
from idempotent.consumer import AnyConsumer
from idempotent.errors import (
    ConfigurationError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
    described,
)
from idempotent.keys import KeySpace
from idempotent.logs import EventLog
from idempotent.observe.counting import StoreMeasures, stores
from idempotent.observe.log_lines import LogThrottle
from idempotent.worker.pause_watch import PauseWatch

log = EventLog(__name__)

_EVERY_S: Final = 5.0
_EVERY_WHILE_DOWN_S: Final = 1.0
# An answer that takes longer counts as no answer, until it comes.
_ANSWER_S: Final = 10.0
_LAST_WAIT_S: Final = 1.0
_REMIND_S: Final = 60
_TRIALS: Final = KeySpace(OWN, "trial")
# Of the deletions.
_FIRST_AFTER_S: Final = 60.0
_JITTER: Final = 0.1
_MEASURE_S: Final = 15.0
# So many times as long as a measure takes, no other one is taken.
_REST: Final = 100


class StoreWatch:
    """A context manager: inside, a thread asks every checker's store every few seconds.

    `ping` only reads, and a store that answers may still take no keys: its disk or its memory is full. So a key is
    claimed and freed again on entering, after a message found the store unavailable, and until an outage is over. That
    it could not be freed is said once: messages are processed all the same.

    Entering waits for the first answers, at most ten seconds. What a store answers is logged when it changes.

    Args:
        checkers: the checkers whose stores are asked.
        pauses: is asked too, of each store that answers; None: there are none.
        fail_fast: raise on entering when a store cannot be used.
        clock: seconds, by which an outage is measured.
    """

    def __init__(
        self,
        checkers: Collection[AbstractIdempotentChecker],
        *,
        pauses: PauseWatch | None = None,
        fail_fast: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask nothing yet."""
        self._checkers = tuple(checkers)
        self._pauses = pauses or PauseWatch(())
        self._fail_fast = fail_fast
        self._errors: dict[AbstractIdempotentChecker, Exception] = {}
        self._suspects = set(checkers)
        # One key, which each trial takes over from the one before if that could not free it.
        self._trial = ClaimRequest(_TRIALS.key(secrets.token_hex(8)))
        self._not_freed: set[AbstractIdempotentChecker] = set()
        self._clock = clock
        self._down_since: dict[AbstractIdempotentChecker, float] = {}
        self._said_at: dict[AbstractIdempotentChecker, int] = {}
        # The checker whose answer is waited for. The lock keeps a late note from overtaking the answer.
        self._asked: AbstractIdempotentChecker | None = None
        self._lock = threading.Lock()
        self._has_asked = threading.Event()
        # Asked more often, a store in trouble does not recover sooner.
        self._thread = RepeatingThread(
            self._ask_all, "idempotent-stores", interval_s=0.0, pause_s=_EVERY_WHILE_DOWN_S
        )

    @property
    def ready(self) -> bool:
        """Whether every store gave its last answer in time, and can be used."""
        return self._has_asked.is_set() and not self._errors

    def suspect(self, checker: AbstractIdempotentChecker) -> None:
        """Ask this checker's store soon, with a claim: a message found it unavailable. From any thread."""
        self._suspects.add(checker)
        self._thread.wake()

    def __enter__(self) -> Self:
        """Wait for the first answers.

        Raises:
            StoreError: with `fail_fast`: a store cannot be used, or did not answer.
        """
        self._thread.start()
        answered = self._has_asked.wait(_ANSWER_S)
        if self._fail_fast and not self.ready:
            self._thread.stop()
            raise next(iter(self._errors.values())) if answered else _silent()
        return self

    def __exit__(self, *_error: object) -> None:
        self._thread.stop(_LAST_WAIT_S)

    def _ask_all(self) -> None:
        for checker in self._checkers:
            # The question itself may wait for as long as the store is silent.
            late = threading.Timer(_ANSWER_S, self._note_late, (checker,))
            late.daemon = True
            self._asked = checker
            late.start()
            self._ask(checker)
            late.cancel()
        self._has_asked.set()
        self._thread.interval_s = 0.0 if self._errors else _EVERY_S - _EVERY_WHILE_DOWN_S

    def _ask(self, checker: AbstractIdempotentChecker) -> None:
        failed = self._failure(checker.ping)
        if not isinstance(failed, StoreUnavailableError):  # else it would be waited for twice
            not_told = self._failure(self._pauses.ask, checker)
            failed = failed or not_told
        if failed is None and (checker in self._suspects or checker in self._errors):
            self._suspects.discard(checker)
            failed = self._failure(self._claim_a_key, checker)
        with self._lock:
            self._asked = None
            if failed is not None:
                self._note(checker, failed)
            elif self._errors.pop(checker, None) is not None:
                self._said_at.pop(checker, None)
                down_s = round(self._clock() - self._down_since.pop(checker))
                # As loud as the outage, or a log of warnings never shows its end.
                log.warning("store_usable_again", extra={"checker": type(checker).__name__, "down_s": down_s})

    @staticmethod
    def _failure(question: Callable[..., object], *about: object) -> Exception | None:
        try:
            question(*about)
        except Exception as error:  # also that of a checker of the application
            return error
        return None

    def _claim_a_key(self, checker: AbstractIdempotentChecker) -> None:
        if checker.remembers.by_position:  # a claim without a position would be refused
            return
        try:
            error = checker.protocol.try_key(self._trial)
        except StoreBusyError:
            return  # it waits for transactions of others, and will take the key after them
        if error is not None and not isinstance(error, StoreBusyError) and checker not in self._not_freed:
            # It takes keys, so it serves messages.
            self._not_freed.add(checker)
            log.warning("trial_not_freed", extra={"checker": type(checker).__name__, "error": str(error)})

    def _note_late(self, checker: AbstractIdempotentChecker) -> None:
        with self._lock:
            if self._asked is checker and self._thread.runs:
                self._note(checker, _silent())

    def _note(self, checker: AbstractIdempotentChecker, error: Exception) -> None:
        before = self._errors.get(checker)
        self._errors[checker] = error
        since = self._down_since.setdefault(checker, self._clock())
        down_s = round(self._clock() - since)
        if str(before) != str(error) or down_s - self._said_at.get(checker, 0) >= _REMIND_S:
            self._said_at[checker] = down_s
            about = {"checker": type(checker).__name__, "error": str(error), "down_s": down_s}
            log.error("store_unusable", extra=about)


def _silent() -> StoreUnavailableError:
    return StoreUnavailableError(f"the store did not answer within {_ANSWER_S:g} seconds")


class ExpiredKeys:
    """A context manager: inside, every checker deletes its expired keys, one process at a time.

    Args:
        checkers: the checkers whose keys are deleted.
        interval_s: seconds from one round to the next, give or take a tenth; the first comes within a minute.
            None: never.
    """

    def __init__(self, checkers: Collection[AbstractIdempotentChecker], interval_s: float | None) -> None:
        """Start nothing yet."""
        self._checkers = tuple(checkers)
        self._interval_s = interval_s
        self._thread = RepeatingThread(self._delete_all, "idempotent-gc", interval_s)

    def __enter__(self) -> None:
        if self._interval_s is not None:
            # Workers that start together must not query the store together.
            self._thread.interval_s = min(_FIRST_AFTER_S, self._interval_s) * random.uniform(0.5, 1.0)
            self._thread.start()

    def __exit__(self, *_error: object) -> None:
        # Its batches are short. If one takes longer, the lock in the store ends with its lease.
        self._thread.stop(_LAST_WAIT_S)

    def _delete_all(self) -> None:
        assert self._interval_s is not None
        for checker in self._checkers:
            self._delete(checker)
        self._thread.interval_s = self._interval_s * random.uniform(1 - _JITTER, 1 + _JITTER)

    def _delete(self, checker: AbstractIdempotentChecker) -> None:
        try:
            deleted = checker.garbage_collect_alone()
        except Exception as error:
            # Expired keys only take disk space: messages continue, and the next round tries again.
            log.warning("gc_failed", extra={"checker": type(checker).__name__, "error": str(error)})
            return
        if deleted is not None:
            log.info("gc_done", extra={"checker": type(checker).__name__, "deleted": deleted})


class StoreSurvey:
    """A context manager: inside, the store of every checker is measured each fifteen seconds, by one process at a time.

    A measure reads each key of the store that is not done, which takes an SQL database a look at every key. One that
    takes long comes less often: a hundredth of the time is spent on measuring.

    Args:
        consumers: those whose checkers' stores are measured.
        measures: gets the measures. If nobody wants them, nothing is measured.
    """

    def __init__(self, consumers: Collection[AnyConsumer], measures: StoreMeasures = stores) -> None:
        """Start nothing yet."""
        self._measures = measures
        self._stores: dict[str, MeasuredStore] = {}
        self._thread = RepeatingThread(self._measure_all, "idempotent-measures", 0.0, pause_s=_MEASURE_S)
        if measures.wanted:
            for consumer in consumers:
                checker = consumer.checker
                store = self._stores.setdefault(checker.store_name, MeasuredStore(checker, measures))
                store.consumers.add(consumer.name)

    def __enter__(self) -> None:
        if self._stores:
            self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self._thread.stop(_LAST_WAIT_S)
        for store in self._stores.values():
            store.give_up()

    def _measure_all(self) -> None:
        for store in self._stores.values():
            store.look()


class MeasuredStore:
    """One store of a worker.

    Args:
        checker: one of those that use it.
        measures: gets its measures.

    Attributes:
        consumers: those of the worker, `subject:group`: what they have begins at 0.
    """

    def __init__(self, checker: AbstractIdempotentChecker, measures: StoreMeasures) -> None:
        """Measure nothing yet."""
        self.consumers: set[str] = set()
        self._checker = checker
        self._measures = measures
        self._lead = checker.lead("metrics") if checker.is_shared else None
        self._next = 0.0
        self._has_runs = True
        self._failures = LogThrottle()

    def look(self) -> None:
        """Measure the store, if it is time, and no other process does."""
        try:
            if self._lead is not None and not self._lead.take():
                self._measures.forget(self._checker.store_name)
            elif time.monotonic() >= self._next:
                self._measure()
        except Exception as error:  # also that of a checker of the application
            more = self._failures.take()
            if more is not None:
                about = {"store": self._checker.store_name, "error": described(error), "more": more}
                log.warning("store_not_measured", extra=about)
            if isinstance(error, ConfigurationError):
                self._next = math.inf  # it shows no keys, now or later

    def _measure(self) -> None:
        began = time.monotonic()
        try:
            stats = self._with_runs(self._checker.admin().measure())
        finally:
            took_s = time.monotonic() - began
            wait_s = max(_MEASURE_S, took_s * _REST)
            self._next = began + took_s + wait_s - _MEASURE_S / 2  # the thread looks each fifteen seconds
        self._measures.measured(self._checker.store_name, self._named(stats), 4 * wait_s)

    def give_up(self) -> None:
        """Let another process measure it."""
        self._measures.forget(self._checker.store_name)
        if self._lead is not None:
            self._lead.give_up()

    def _named(self, stats: StoreStats) -> StoreStats:
        """The measure, with zeros for the worker's consumers."""
        nothing = dict.fromkeys(self.consumers, WaitingKeys(0, 0, 0.0))
        return replace(stats, consumers={**nothing, **stats.consumers})

    def _with_runs(self, stats: StoreStats) -> StoreStats:
        """The measure, with Spark's runs beside the keys. An application without Spark need not have their table."""
        if self._has_runs:
            try:
                return with_runs(self._checker, stats)
            except (StoreUnavailableError, StoreBusyError):
                raise
            except StoreError:
                self._has_runs = False
        return stats


def with_runs(checker: AbstractIdempotentChecker, stats: StoreStats) -> StoreStats:
    """A measure with the runs of the database: one look at each. Redis would read the name of each key once more."""
    from idempotent.adapters.spark.ledger import RunState
    from idempotent.checkers.sql.store import SqlStore
    from idempotent.schema import runs_name
    from idempotent.stores.sql.cursor import query

    store = getattr(checker, "store", None)
    if not isinstance(store, SqlStore):
        return stats
    dialect = store.connections.dialect
    statement = (
        f"SELECT state, COUNT(*), {dialect.now_us} - MIN(lease_until) FROM {dialect.located(runs_name(store.table))}"
        " GROUP BY state"
    )
    found = {
        RunState(state): (int(count), int(us)) for state, count, us in store.connections.run(query, statement)
    }
    waits_us = found.get(RunState.PREPARED, (0, 0))[1]
    # A state without runs is a zero, if there are any: an alert on what is missing does not resolve.
    runs = {each.name.lower(): found.get(each, (0, 0))[0] for each in RunState if each and found}
    return replace(stats, runs=runs, prepared_waits_s=max(waits_us, 0) / 1e6)
