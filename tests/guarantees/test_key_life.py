"""The life of a key as a model, against every checker: whatever the order of claims, completions, failures, lapses,
renewals, decisions of people and collections, by however many owners, store and model agree. So they do when each call
is a task's, and lone calls share rounds."""

import asyncio
import itertools
import struct
from dataclasses import dataclass
from functools import partial

import pytest
import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from idempotent.checkers.batching import combiner
from idempotent.claims import NOBODY, ClaimRequest, Completion, Failure, KeyStatus, Lapsed, Verdict
from idempotent.keys import KeySpace
from idempotent.policy import Backoff
from tests.support.awaited import AwaitedChecker
from tests.support.depth import examples
from tests.support.state_machines import run_machine
from tests.support.stores import ALL, SHARED, open_store

STEPS = 20
LONG_S = 3600.0
MAX_ATTEMPTS = 3
BACKOFFS = st.sampled_from([None, Backoff(0.0, 0.0), Backoff(LONG_S / 4, LONG_S)])
SPACE = KeySpace("orders", "life")
KEYS = st.integers(0, 2)
CONTENTS = st.sampled_from([None, b"a" * 20, b"b" * 20])
# Each step is several round trips.
DESK_PART = {"memory": 20, "sqlite": 20, "mysql": 40, "postgres": 40, "redis": 40}
_examples = itertools.count()


@dataclass
class Row:
    """What the model knows of a stored key."""

    status: KeyStatus
    owner: bytes
    fence: int
    content: bytes | None
    lapsed: bool = False
    deaths: int = 0
    expired: bool = False

    @property
    def in_progress(self):
        return self.status.in_progress

    @property
    def held(self):
        """Its handler failed."""
        return self.owner == NOBODY and self.in_progress


class Hands:
    """Moves the clock of one key, in the store itself."""

    def __init__(self, store, checker):
        self.store, self.checker = store, checker
        if store.kind not in ("memory", "redis"):
            self.engine = store.engine(isolation_level="AUTOCOMMIT")

    @property
    def collects(self):
        """Redis forgets by itself."""
        return self.store.kind != "redis"

    def lapse(self, key):
        if self.store.kind == "memory":
            self.checker.entries[key.hash].lease_until = 1.0
        elif self.store.kind == "redis":
            self.checker.store.client.setrange(
                self.checker.store.names.name(key.hash), 9, struct.pack(">Q", 1)
            )
        else:
            self._update(key, "lease_until")

    def expire(self, key):
        if self.store.kind == "memory":
            self.checker.entries[key.hash].expires_at = 1.0
        else:
            self._update(key, "expires_at")

    def _update(self, key, column):
        with self.engine.connect() as connection:
            done = connection.execute(
                sa.text(f"UPDATE {self.store.table} SET {column} = 1 WHERE key_hash = :hash"),
                {"hash": key.hash},
            )
            assert done.rowcount == 1


class KeyLife(RuleBasedStateMachine):
    """Three keys, and everybody who ever claimed one of them."""

    def __init__(self, checker, hands):
        super().__init__()
        self.checker, self.hands = checker, hands
        self.admin = checker.admin()
        example = next(_examples)
        self.keys = [SPACE.key(f"{example}-{number}") for number in range(3)]
        self.rows = [None, None, None]
        self.fences = [0, 0, 0]
        # None: what a collection left of them is the store's affair.
        self.attempts = [0, 0, 0]
        self.claims = []

    # Claims

    def request(self, number, content, on_lapsed):
        parks = on_lapsed is Lapsed.PARK
        status = KeyStatus.IN_PROGRESS_PARK if parks else KeyStatus.IN_PROGRESS
        return ClaimRequest(self.keys[number], fingerprint=content, status=status, on_lapsed=on_lapsed)

    def check(self, number, request, decision):
        row = self.rows[number]
        if row is None or (row.held and row.lapsed):
            self.acquired(number, request, decision, deaths=0)
        elif not row.in_progress:
            done = row.status is KeyStatus.DONE
            assert decision.verdict is (Verdict.DUPLICATE if done else Verdict.DEAD)
            assert decision.fingerprint == row.content
        elif not row.lapsed:
            assert (decision.verdict, decision.lapsed) == (Verdict.IN_PROGRESS, False)
            assert 0 < decision.retry_after_s <= LONG_S
        elif request.on_lapsed is Lapsed.LEAVE or (
            None not in (request.fingerprint, row.content) and request.fingerprint != row.content
        ):
            assert (decision.verdict, decision.lapsed) == (Verdict.IN_PROGRESS, True)
        elif request.on_lapsed is Lapsed.PARK:
            assert decision.verdict is Verdict.DEAD
            self.final(number, KeyStatus.DEAD)
        else:
            self.acquired(number, request, decision, deaths=row.deaths + 1)

    def acquired(self, number, request, decision, *, deaths):
        claim = decision.claim
        assert (decision.verdict, decision.deaths, claim.deaths) == (Verdict.ACQUIRED, deaths, deaths)
        assert (claim.key, claim.owner) == (request.key, request.owner)
        assert claim.fence > self.fences[number], "a fence never comes twice"
        self.fences[number] = claim.fence
        self.rows[number] = Row(
            request.status, request.owner, claim.fence, request.fingerprint, deaths=deaths
        )
        self.claims.append((number, claim))

    @rule(number=KEYS, content=CONTENTS, on_lapsed=st.sampled_from(Lapsed))
    def claim(self, number, content, on_lapsed):
        request = self.request(number, content, on_lapsed)
        self.check(number, request, self.checker.protocol.claim(request))

    @rule(contents=st.tuples(CONTENTS, CONTENTS, CONTENTS), order=st.permutations([0, 1, 2]))
    def claim_together(self, contents, order):
        requests = [self.request(number, contents[number], Lapsed.LEAVE) for number in order]
        for number, request, decision in zip(
            order, requests, self.checker.protocol.claim_many(requests), strict=True
        ):
            self.check(number, request, decision)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def claim_whose_answer_was_lost(self, data):
        number, claim = data.draw(st.sampled_from(self.claims))
        row = self.rows[number]
        if row is not None and row.owner == claim.owner:
            again = self.checker.protocol.claim(ClaimRequest(claim.key, claim.owner, row.content, row.status))
            assert (again.verdict, again.claim.fence) == (Verdict.ACQUIRED, row.fence)

    # What becomes of them

    def owns(self, number, claim):
        row = self.rows[number]
        return row is not None and row.owner == claim.owner

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), result=st.sampled_from([None, b"1"]))
    def complete(self, data, result):
        number, claim = data.draw(st.sampled_from(self.claims))
        assert self.checker.protocol.complete(claim, result) == self.owns(number, claim)
        self.done(number, claim)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def complete_together(self, data):
        chosen = data.draw(st.lists(st.sampled_from(self.claims), unique_by=lambda one: one[0], min_size=1))
        kept = self.checker.protocol.complete_many([Completion(claim) for _, claim in chosen])
        assert kept == [self.owns(number, claim) for number, claim in chosen]
        for number, claim in chosen:
            self.done(number, claim)

    def done(self, number, claim):
        if self.owns(number, claim):
            self.final(number, KeyStatus.DONE)

    def final(self, number, status):
        row = self.rows[number]
        row.status, row.lapsed, row.expired = status, False, False

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), fails=st.booleans(), backoff=BACKOFFS)
    def release(self, data, fails, backoff):
        number, claim = data.draw(st.sampled_from(self.claims))
        row = self.rows[number]
        owned = self.owns(number, claim) and row.in_progress
        released = self.checker.protocol.release(
            claim, Failure("ValueError: no", MAX_ATTEMPTS, backoff=backoff) if fails else None
        )
        assert released.owned == owned
        if not owned:
            return
        if fails:
            known = self.attempts[number]
            assert released.attempts == known + 1 if known is not None else released.attempts >= 1
            self.attempts[number] = released.attempts
            assert released.dead == (released.attempts >= MAX_ATTEMPTS)
        if released.dead:
            self.final(number, KeyStatus.DEAD)
        elif fails and backoff and backoff.initial_s:
            row.status, row.owner, row.content, row.lapsed = KeyStatus.IN_PROGRESS, NOBODY, None, False
            row.expired = False  # attempts are kept for a retention from the last one
        else:
            self.rows[number] = None

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def renew(self, data):
        chosen = data.draw(st.lists(st.sampled_from(self.claims), unique_by=lambda one: one[0], min_size=1))
        kept = self.checker._renew_many([claim for _, claim in chosen])
        assert kept == [
            self.owns(number, claim) and self.rows[number].in_progress for number, claim in chosen
        ]
        for (number, _), renewed in zip(chosen, kept, strict=True):
            if renewed:
                self.rows[number].lapsed = False

    # Lone calls that meet

    @precondition(lambda self: isinstance(self.checker, AwaitedChecker))
    @rule(data=st.data(), numbers=st.lists(KEYS, unique=True, min_size=2))
    def share_a_round(self, data, numbers):
        """Claims and completions of different keys arrive while a statement is under way."""
        completed, claimed = [], []
        for number in numbers:
            mine = [claim for of, claim in self.claims if of == number]
            if mine and data.draw(st.booleans()):
                completed.append((number, data.draw(st.sampled_from(mine))))
            else:
                on_lapsed = data.draw(st.sampled_from(Lapsed))
                claimed.append((number, self.request(number, data.draw(CONTENTS), on_lapsed)))
        completions = [claim for _, claim in completed]
        answers = self.checker.protocol.run(
            in_one_round(self.checker, completions, [request for _, request in claimed])
        )
        for (number, claim), owned in zip(completed, answers, strict=False):
            assert owned == self.owns(number, claim)
            self.done(number, claim)
        for (number, request), decision in zip(claimed, answers[len(completed) :], strict=True):
            self.check(number, request, decision)

    # Time, and people

    @rule(number=KEYS)
    def lapse(self, number):
        row = self.rows[number]
        if row is not None and row.in_progress:
            self.hands.lapse(self.keys[number])
            row.lapsed = True

    @rule(number=KEYS)
    def expire(self, number):
        if self.hands.collects and self.rows[number] is not None:
            self.hands.expire(self.keys[number])
            self.rows[number].expired = True

    @precondition(lambda self: any(row is not None and row.expired for row in self.rows))
    @rule()
    def collect(self):
        self.checker.garbage_collect()
        for number, row in enumerate(self.rows):
            if row is None or not row.expired:
                continue
            if not row.in_progress or (row.lapsed and row.status is not KeyStatus.IN_PROGRESS_PARK):
                self.rows[number], self.attempts[number] = None, None

    @rule(number=KEYS)
    def reopen(self, number):
        row, record = self.rows[number], self.admin.get(self.keys[number])
        if record is None:
            return
        may = not row.in_progress or row.lapsed or row.held
        assert self.admin.reopen(record) == may
        if may:
            self.rows[number], self.attempts[number] = None, 0

    @rule(number=KEYS)
    def mark_done(self, number):
        row, record = self.rows[number], self.admin.get(self.keys[number])
        if record is None:
            return
        may = row.status is KeyStatus.DEAD or (row.in_progress and (row.lapsed or row.held))
        assert self.admin.mark_done(record) == may
        if may:
            self.final(number, KeyStatus.DONE)

    @invariant()
    def the_store_agrees(self):
        for key, row in zip(self.keys, self.rows, strict=True):
            record = self.admin.get(key)
            if row is None:
                assert record is None
            else:
                assert (record.status, record.fence, record.held) == (row.status, row.fence, row.held)


async def in_one_round(checker, completions, requests):
    """The answers to these calls, which all wait before the first is sent."""
    queue, under_way = checker.combiner.calls, object()
    while queue.busy:  # noqa: ASYNC110 - the server thread of the round before ends after it has answered
        await asyncio.sleep(0.001)
    assert queue.go_direct(under_way)
    calls = [checker.awaiting.complete(claim) for claim in completions]
    answers = asyncio.gather(*calls, *map(checker.awaiting.claim, requests))
    await asyncio.sleep(0)
    queue.leave_direct(under_way)
    return await answers


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", SHARED)
def test_store_and_model_agree_on_what_tasks_do(kind, request, monkeypatch):
    monkeypatch.setattr(combiner, "MOST_DIRECT", 1)  # one call under way makes others wait
    for store in open_store(kind, request, reuse=True):
        checker = AwaitedChecker(store.leased(lease_s=LONG_S, retention_s=LONG_S))
        machine = partial(KeyLife, checker, Hands(store, checker))
        run_machine(machine, examples=examples(1000, part=DESK_PART[kind]), steps=STEPS)
        checker.close()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ALL)
def test_store_and_model_agree(kind, request):
    for store in open_store(kind, request, reuse=True):
        checker = store.leased(lease_s=LONG_S, retention_s=LONG_S)
        machine = partial(KeyLife, checker, Hands(store, checker))
        run_machine(machine, examples=examples(2000, part=DESK_PART[kind]), steps=STEPS)
