"""Random histories over the real ledger: right with the rules, and wrong without any one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace

import pytest

from idempotent.adapters.spark.ledger import RunLedger, RunState
from idempotent.adapters.spark.ledger.run_claims import RowVerdict, RunClaims
from idempotent.adapters.spark.ledger.runs import RunChange, RunRow
from tests.adapters.spark.ledger.interleaving import (
    DISOWNED,
    DONE,
    DUPLICATE,
    LOST,
    STUCK,
    UNSTABLE,
    History,
)
from tests.adapters.spark.ledger.ledgers import open_place
from tests.adapters.spark.ledger.memory import MemoryRunStore
from tests.support.depth import examples

LEASE_TICKS = 100
LAPSE = 0.04
PARTS, SEEDS_OF_A_PART = 10, examples(2000)
WRONG_SEEDS = 4000
REAL_LEASES_S = (0.000001, 0.02)


def over_memory(seeds: range, base: type[MemoryRunStore] = MemoryRunStore, **options) -> Iterator[str]:
    """The outcome of each history, in a store of its own whose clock passes a tick a step and sometimes a lease."""
    for seed in seeds:
        now = [1_000_000]
        store = base(clock=lambda now=now: now[0])

        def pass_time(chance, now=now):
            now[0] += 2 * LEASE_TICKS if chance.random() < LAPSE else 1

        history = History(seed, store, lease_s=lambda _: LEASE_TICKS / 1e6, pass_time=pass_time, **options)
        yield history.play()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_history_loses_or_doubles_a_key(part):
    seeds = range(part * SEEDS_OF_A_PART, (part + 1) * SEEDS_OF_A_PART)
    assert Counter(over_memory(seeds)) == {DONE: SEEDS_OF_A_PART}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "seeds"),
    [
        pytest.param("sqlite", 300, marks=pytest.mark.slow),
        ("redis", 60),
        pytest.param("mysql", 40, marks=pytest.mark.slow),
        pytest.param("postgres", 40, marks=pytest.mark.slow),
    ],
)
def test_no_history_in_a_real_store_does_either(kind, seeds, request):
    with contextmanager(open_place)(kind, request) as place:
        store = place.store()
        histories = (
            History(seed, store, lease_s=lambda chance: chance.choice(REAL_LEASES_S)) for seed in range(seeds)
        )
        assert Counter(history.play() for history in histories) == {DONE: seeds}


class DropsWhatALiveRunHolds(RunClaims):
    """The obvious rule: a key that another run has is a duplicate."""

    def _step(self, seen, found, rows, keys):
        held = seen.token in rows and rows[seen.token].state in {RunState.OPEN, RunState.PREPARED}
        if not held or seen.token == self._ref.token:
            return super()._step(seen, found, rows, keys)
        return keys.decide(RowVerdict.DUPLICATE, found)


class WithoutPrepared(RunLedger):
    """Publishes while OPEN, when others may still abort it."""

    def prepare(self, ref, *, rows=None, manifest=None):
        pass

    def commit(self, ref, output_ref=None, *, accept_loss=False):
        within = frozenset({RunState.OPEN, RunState.COMMITTED})
        self._change(ref, RunChange(within, to=RunState.COMMITTED, epoch=ref.epoch), done=frozenset())

    def rows(self, tokens):
        # What was not prepared counts by its epoch.
        found = super().rows(tokens)
        return {
            token: replace(each, prepared=each.prepared or each.ref.epoch) for token, each in found.items()
        }


class TokenIsTheRunsAlone(RunLedger):
    """An aborted run is opened again under its old token."""

    def _begin_next(self, ref, newest, fingerprint, lease_us):
        if newest is None:
            return super()._begin_next(ref, newest, fingerprint, lease_us)
        self.store.change_run(
            newest.ref.token, RunChange(frozenset({RunState.ABORTED}), to=RunState.OPEN, lease_us=lease_us)
        )
        return self.store.find(newest.ref)


class AbortsWhatIsPrepared(MemoryRunStore):
    """Takes a PREPARED run for one that can be aborted."""

    def change_run(self, token, change):
        if change.only_lapsed:
            change = replace(change, within=change.within | {RunState.PREPARED})
        return super().change_run(token, change)


class AbortsUnfenced(RunLedger):
    """Somebody's abort of a PREPARED run does not ask whether another driver has begun it again meanwhile."""

    def abort(self, ref, *, unpublished=False):
        change = RunChange(frozenset({RunState.OPEN, RunState.PREPARED}), to=RunState.ABORTED)
        self._change(ref, change, done=frozenset({RunState.ABORTED}))


class AllClaimsCount(RunLedger):
    """What an earlier attempt claimed counts too, although a later one, with less input, was published."""

    def rows(self, tokens):
        return {token: as_kind(WithoutMarks, row) for token, row in super().rows(tokens).items()}


def as_kind(kind, row):
    return kind(**{each.name: getattr(row, each.name) for each in fields(row)})


class WithoutMarks(RunRow):
    def counts(self, mark):
        return self.state is RunState.COMMITTED

    def frees(self, mark):
        return self.state is RunState.ABORTED


class EvaluatesAgain(RunLedger):
    """A driver that resumes a PREPARED run evaluates, and publishes what it meets."""

    def begin(self, consumer, run_id, **options):
        row = super().begin(consumer, run_id, **options)
        return replace(row, manifest=None, state=RunState.OPEN) if row.state is RunState.PREPARED else row

    def rows(self, tokens):
        return {token: as_kind(AdmitsAll, row) for token, row in super().rows(tokens).items()}

    def claim(self, ref, hashes, **options):
        owners = super().claim(ref, hashes, **options)
        return [o and (o._replace(mark=ref.epoch) if o.token == ref.token else o) for o in owners]


class AdmitsAll(RunRow):
    def admits(self, epoch):
        return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "found"),
    [
        pytest.param({"claims": DropsWhatALiveRunHolds}, {LOST}, id="drop what a live run holds"),
        pytest.param({"rules": WithoutPrepared}, {DUPLICATE}, id="no PREPARED"),
        pytest.param({"rules": TokenIsTheRunsAlone}, {DUPLICATE, DISOWNED}, id="token = run_id only"),
        pytest.param({"base": AbortsWhatIsPrepared}, {DUPLICATE}, id="abort what is PREPARED"),
        pytest.param({"rules": AbortsUnfenced}, {DUPLICATE}, id="abort without a fence"),
        pytest.param({"rules": AllClaimsCount}, {LOST}, id="claims of all attempts count"),
        pytest.param({"rules": EvaluatesAgain}, {STUCK, UNSTABLE}, id="PREPARED evaluated again"),
    ],
)
def test_the_model_finds_what_is_wrong_without_a_rule(options, found):
    assert any(outcome in found for outcome in over_memory(range(WRONG_SEEDS), again=0, **options))
