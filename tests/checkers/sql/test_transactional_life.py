"""Transactions as a model: whatever the order of claims, commits, rollbacks, lost connections, decisions of people and
collections, what is committed is what the model says, each effect with its key, and never one without the other."""

import itertools
from dataclasses import dataclass, field
from functools import cached_property, partial

import pytest
import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from idempotent.claims import Claim, ClaimRequest, Completion, Failure, KeyStatus, Verdict
from idempotent.errors import DoomedTransactionError, StoreBusyError, StoreError
from idempotent.keys import KeySpace
from idempotent.policy import Backoff
from tests.support.awaited import AwaitedChecker
from tests.support.depth import examples
from tests.support.state_machines import run_machine
from tests.support.stores import open_store

EXAMPLES, STEPS = examples(2000, part=40), 15
MAX_ATTEMPTS = 2
BACKOFF = Backoff(600.0, 600.0)
SPACE = KeySpace("orders", "transactions")
KEYS = st.integers(0, 2)
_examples = itertools.count()
_IDS = {"mysql": "SELECT CONNECTION_ID()", "postgres": "SELECT pg_backend_pid()"}
_KILLS = {"mysql": "KILL {}", "postgres": "SELECT pg_terminate_backend({})"}


@dataclass
class Open:
    """A transaction that somebody has open."""

    claims: dict[int, Claim]
    seen: set[int]
    """Duplicates too: whoever would change these keys waits for its end."""
    server_id: int
    is_dead: bool = False


@dataclass
class Row:
    status: KeyStatus
    expired: bool = False
    over: bool = False
    """Its handler failed, and its backoff is over."""


@dataclass
class Place:
    """The store, and how many effects the model has seen committed."""

    store: object
    checker: object
    engine: sa.Engine
    booked: dict[str, int] = field(default_factory=dict)

    @cached_property
    def other(self):
        """The checker of another process, which does not know what this one runs."""
        return self.store.transactional()


class TransactionalLife(RuleBasedStateMachine):
    def __init__(self, place):
        super().__init__()
        self.place, self.checker = place, place.checker
        self.admin = self.checker.admin()
        self.example = next(_examples)
        self.keys = [SPACE.key(f"{self.example}-{number}") for number in range(3)]
        self.rows = [None, None, None]
        self.attempts = [0, 0, 0]
        self.freed_at_once = [False, False, False]
        self.open = []

    def teardown(self):
        for one in self.open:
            self.checker.protocol.release_many([(claim, None) for claim in one.claims.values()])

    @property
    def held(self):
        return {number for one in self.open if not one.is_dead for number in one.claims}

    def is_left_alone(self, number):
        return not any(number in one.seen for one in self.open if not one.is_dead)

    def at_rest(self, number):
        return self.rows[number] and self.is_left_alone(number)

    @rule(numbers=st.lists(KEYS, unique=True, min_size=1))
    def claim(self, numbers):
        requests = [ClaimRequest(self.keys[number]) for number in numbers]
        is_held = bool(self.held.intersection(numbers))
        try:
            decisions = self.checker.protocol.claim_many(requests)
        except StoreBusyError:
            # InnoDB locks a duplicate too, until the transaction that saw it ends.
            assert is_held or not all(self.is_left_alone(number) for number in numbers)
            return
        claims = {}
        for number, decision in zip(numbers, decisions, strict=True):
            row = self.rows[number]
            if any(
                number in one.claims for one in self.open
            ):  # also one whose connection is lost, until it ends
                assert (decision.verdict, decision.reason) == (Verdict.IN_PROGRESS, "this process runs it")
            elif row is None or row.over:
                assert decision.verdict is Verdict.ACQUIRED
                claims[number] = decision.claim
            elif row.status.in_progress:
                assert decision.verdict is Verdict.IN_PROGRESS
                assert not decision.lapsed
            else:
                is_done = row.status is KeyStatus.DONE
                assert decision.verdict is (Verdict.DUPLICATE if is_done else Verdict.DEAD)
        if claims:
            self.open.append(self.opened(claims, set(numbers)))

    def opened(self, claims, seen):
        """The effect of each key, and who the server says this is."""
        argument, claim = self.checker.handler_argument, next(iter(claims.values()))
        if isinstance(self.checker, AwaitedChecker):
            protocol = self.checker.protocol
            connection = protocol.call(argument, claim, AsyncConnection)
            return protocol.run(connection.run_sync(self.booked, claims, seen))
        return self.booked(argument(claim, sa.Connection), claims, seen)

    def booked(self, connection, claims, seen):
        for number in claims:
            connection.execute(self.place.store.effects.insert().values(id=self.name(number)))
        return Open(claims, seen, connection.scalar(sa.text(_IDS[self.place.store.kind])))

    def name(self, number):
        return f"{self.example}-{number}"

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def commit(self, data):
        one = self.one_of(data)
        completions = [Completion(claim) for claim in one.claims.values()]
        if one.is_dead:
            with pytest.raises((StoreError, DoomedTransactionError, sa.exc.DBAPIError)):
                self.checker.protocol.complete_many(completions)
            self.checker.protocol.release_many([(claim, None) for claim in one.claims.values()])
            return
        assert self.checker.protocol.complete_many(completions) == [True] * len(completions)
        for number in one.claims:
            self.rows[number] = Row(KeyStatus.DONE)
            self.place.booked[self.name(number)] = self.place.booked.get(self.name(number), 0) + 1

    @precondition(lambda self: self.open)
    @rule(data=st.data(), fails=st.booleans(), backoff=st.sampled_from([None, BACKOFF]))
    def roll_back(self, data, fails, backoff):
        one = self.one_of(data)
        failure = Failure("ValueError: no", MAX_ATTEMPTS, backoff=backoff) if fails else None
        # Somebody else may have claimed, or settled, the keys of one whose connection is gone.
        free = [number for number in one.claims if number not in self.held and self.is_free(number)]
        if fails and len(free) < len(one.claims):
            failure = None
        released = self.checker.protocol.release_many([(claim, failure) for claim in one.claims.values()])
        assert all(each.owned for each in released)
        if failure is None:
            return
        for number, each in zip(one.claims, released, strict=True):
            known = self.attempts[number]
            # A failure whose claim was made within its backoff of an earlier failure counts nothing.
            more = 0 if backoff and self.freed_at_once[number] else 1
            assert each.attempts == known + more if known is not None else each.attempts >= 1
            self.freed_at_once[number] = backoff is None
            assert each.dead == (each.attempts >= MAX_ATTEMPTS)
            self.attempts[number] = each.attempts
            if each.dead:
                self.rows[number] = Row(KeyStatus.DEAD)
            elif backoff:
                self.rows[number] = Row(KeyStatus.IN_PROGRESS)

    @precondition(lambda self: any(not one.is_dead for one in self.open))
    @rule(data=st.data())
    def lose_the_connection(self, data):
        one = data.draw(st.sampled_from([one for one in self.open if not one.is_dead]))
        one.is_dead = True
        with self.place.engine.connect() as connection:
            connection.execute(sa.text(_KILLS[self.place.store.kind].format(one.server_id)))
        self.await_rollback(one)

    def await_rollback(self, one):
        """The server rolls back in its own time; then the keys are free for whoever comes."""
        number = next(iter(one.claims))
        for _ in range(1000):
            try:
                (decision,) = self.place.other.protocol.claim_many([ClaimRequest(self.keys[number])])
            except StoreBusyError:
                continue
            assert decision.verdict is Verdict.ACQUIRED, "what a lost connection has done was kept"
            self.place.other.protocol.release(decision.claim)
            return
        raise AssertionError("the keys of a lost connection are held for ever")

    def is_free(self, number):
        row = self.rows[number]
        return row is None or row.over

    @rule(number=KEYS)
    def wait_for_the_backoff(self, number):
        if self.at_rest(number) and self.rows[number].status.in_progress:
            self.rows[number].over = True
            table = self.place.store.table
            with self.place.engine.connect() as connection:
                for change in (f"{table} SET lease_until = 1", f"{table}_failures SET update_at = 1"):
                    connection.execute(
                        sa.text(f"UPDATE {change} WHERE key_hash = :hash"), {"hash": self.keys[number].hash}
                    )

    def one_of(self, data):
        one = data.draw(st.sampled_from(self.open))
        self.open.remove(one)
        return one

    @rule(number=KEYS)
    def expire(self, number):
        if self.at_rest(number):
            self.rows[number].expired = True
            table = self.place.store.table
            with self.place.engine.connect() as connection:
                connection.execute(
                    sa.text(f"UPDATE {table} SET expires_at = 1 WHERE key_hash = :hash"),
                    {"hash": self.keys[number].hash},
                )

    @precondition(
        lambda self: (
            any(row and row.expired for row in self.rows)
            and all(self.at_rest(number) for number, row in enumerate(self.rows) if row and row.expired)
        )
    )
    @rule()
    def collect(self):
        self.checker.garbage_collect()
        for number, row in enumerate(self.rows):
            if row is not None and row.expired and (row.over or not row.status.in_progress):
                self.rows[number], self.attempts[number] = None, None
                self.freed_at_once[number] = False

    @rule(number=KEYS)
    def reopen(self, number):
        if self.at_rest(number):
            assert self.admin.reopen(self.admin.get(self.keys[number]))
            self.rows[number], self.attempts[number] = None, 0
            self.freed_at_once[number] = False

    @invariant()
    def the_store_agrees(self):
        for key, row in zip(self.keys, self.rows, strict=True):
            record = self.admin.get(key)
            assert (record and record.status) == (row and row.status)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("by_tasks", [False, True])
@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_each_effect_is_committed_with_its_key_or_not_at_all(kind, by_tasks, request):
    for store in open_store(kind, request, reuse=True):
        checker = store.transactional(store.async_engine() if by_tasks else None, retention_s=3600.0)
        checker = AwaitedChecker(checker) if by_tasks else checker
        place = Place(store, checker, store.engine(isolation_level="AUTOCOMMIT"))
        run_machine(partial(TransactionalLife, place), examples=EXAMPLES, steps=STEPS)
        assert store.booked() == place.booked
        assert sum(place.booked.values()) > EXAMPLES // 20
