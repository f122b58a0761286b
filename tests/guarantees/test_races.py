"""However many workers race on the same messages, each effect happens once."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.depth import examples
from tests.support.forked import Forked, context
from tests.support.racer import DEADLINE_S, Race, consumer_of, race_in_process, race_in_tasks, run
from tests.support.stores import ALL, ASYNC, SHARED, SQL, Store, open_store

KEYS = examples(1000, part=4)
WORKERS = 8


def checkers(kinds: tuple[str, ...], *modes: str) -> list[object]:
    leased = [pytest.param((kind, "leased"), id=f"{kind}-leased") for kind in kinds]
    return leased + [pytest.param((kind, mode), id=f"{kind}-{mode}") for kind in SQL for mode in modes]


class Track:
    """A store, and the races over it."""

    def __init__(self, store: Store, mode: str, ledger: Path) -> None:
        self.store = store
        self.mode = mode
        self.ledger = ledger

    def race(self, seed: int, order: str = "shuffled", *, mixed: bool = True) -> Race:
        store = self.store
        return Race(store.kind, store.url, store.table, self.mode, str(self.ledger), KEYS, order, seed, mixed)

    def effects(self) -> Counter[str]:
        if self.mode == "leased":
            return Counter(self.ledger.read_text().splitlines())
        return Counter(self.store.booked())

    def processes(self, races: list[Race]) -> list[Counter[str]]:
        """Run each race in a process of its own, started together."""
        together = context.Barrier(len(races))
        with ExitStack() as started:
            children = []
            for race in races:
                child = Forked(race_in_process, race, together, folder=self.ledger.parent)
                started.callback(child.close)
                children.append(child)
            for child in children:
                assert child.wait(2 * DEADLINE_S) == 0, child.err
        return [Counter(json.loads(child.out)) for child in children]

    def threads(self, races: list[Race]) -> list[Counter[str]]:
        """Run each race in a thread; all share one checker, as the threads of a worker do."""
        consumer = consumer_of(races[0], self.store, races[0].checker(self.store))
        answers: list[Counter[str]] = []
        errors: list[BaseException] = []
        together = threading.Barrier(len(races))

        def work(race: Race) -> None:
            try:
                together.wait(20)
                answers.append(run(race, consumer))
            except BaseException as error:
                errors.append(error)

        workers = [threading.Thread(target=work, args=(race,)) for race in races]
        often = sys.getswitchinterval()
        sys.setswitchinterval(0.0005)
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        finally:
            sys.setswitchinterval(often)
        if errors:
            raise errors[0]
        return answers

    def demand_once(self, answers: list[Counter[str]], workers: int) -> None:
        met = sum(answers, Counter())
        effects = self.effects()
        assert {name: count for name, count in effects.items() if count != 1} == {}, met
        assert len(effects) == KEYS
        assert met["processed"] == KEYS, met
        assert met["duplicate"] == KEYS * (workers - 1), met
        if self.store.kind != "sqlite":  # its writers may wait longer for their turn than they like
            assert met["unavailable"] == 0, met


@pytest.fixture
def track(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Track]:
    kind, mode = request.param
    with contextmanager(open_store)(kind, request, reuse=True) as store:
        yield Track(store, mode, tmp_path / "ledger")


@pytest.mark.slow
@pytest.mark.parametrize("track", checkers(SHARED, "transactional"), indirect=True)
def test_eight_processes_racing_on_the_same_keys_have_each_effect_once(track):
    answers = track.processes([track.race(seed) for seed in range(WORKERS)])
    if track.store.kind != "sqlite":  # whoever writes there may keep all others waiting
        assert len([answer for answer in answers if answer["processed"]]) > 1, "or it was no race"
    track.demand_once(answers, WORKERS)


@pytest.mark.slow
@pytest.mark.parametrize("track", checkers(ALL, "transactional", "savepoints"), indirect=True)
def test_eight_threads_racing_on_the_same_keys_have_each_effect_once(track):
    track.demand_once(track.threads([track.race(seed) for seed in range(WORKERS)]), WORKERS)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["leased", "transactional"])
@pytest.mark.parametrize("kind", ["redis", *ASYNC])
def test_500_tasks_racing_in_four_processes_of_which_one_is_killed(request, tmp_path, kind, mode):
    """With leases the killed process leaves effects that are not recorded: only those may happen twice."""
    if (kind, mode) == ("redis", "transactional"):
        pytest.skip("Redis has no transactions")
    with contextmanager(open_store)(kind, request, reuse=True) as store, ExitStack() as started:
        track = Track(store, mode, tmp_path / "ledger")
        track.ledger.touch()
        together = context.Barrier(4)
        children = []
        for seed in range(4):
            child = Forked(race_in_tasks, track.race(seed), 125, 1.5, together, folder=tmp_path)
            started.callback(child.close)
            children.append(child)

        def effects():
            return len(track.ledger.read_text().splitlines()) if mode == "leased" else len(store.booked())

        until = time.monotonic() + DEADLINE_S
        while effects() < KEYS // 4:
            assert time.monotonic() < until, [child.err for child in children]
            time.sleep(0.01)
        victim, *others = children
        victim.send_signal(signal.SIGKILL)
        for child in others:
            assert child.wait(2 * DEADLINE_S) == 0, child.err
        met = sum((Counter(json.loads(child.out)) for child in others), Counter())
        assert met.total() == 3 * KEYS, met
        if mode == "transactional":
            assert store.booked() == {f"m-{number}": 1 for number in range(KEYS)}
            return
        ran = [line.split() for line in track.ledger.read_text().splitlines()]
        assert {name for name, _ in ran} == {f"m-{number}" for number in range(KEYS)}
        by_others = Counter(name for name, pid in ran if int(pid) != victim.pid)
        assert set(by_others.values()) == {1}
        assert met["processed"] == len(by_others)


@pytest.mark.parametrize("track", checkers(SHARED, "transactional"), indirect=True)
def test_two_groups_in_opposite_order_in_two_processes(track):
    """No deadlock reaches the user, and nothing is lost."""
    races = [track.race(seed, order, mixed=False) for seed, order in enumerate(("forward", "reverse"))]
    track.demand_once(track.processes(races), 2)


@pytest.mark.parametrize("track", checkers(ALL, "transactional", "savepoints"), indirect=True)
def test_two_groups_in_opposite_order_in_two_threads(track):
    """No deadlock reaches the user, and nothing is lost."""
    races = [track.race(seed, order, mixed=False) for seed, order in enumerate(("forward", "reverse"))]
    track.demand_once(track.threads(races), 2)
