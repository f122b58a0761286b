"""One history of the fencing model: drivers and stragglers in any order, which may stop at any step."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.adapters.spark.ledger.fencing.world import (
    ABORTED,
    COMMITTED,
    OPEN,
    PREPARED,
    Claim,
    Row,
    Rules,
    Run,
    World,
)

MOST_STEPS = 400
Steps = Iterator[bool]
"""Yields before each atomic step; True if the actor can only wait."""


@dataclass(frozen=True)
class Driver:
    """One attempt at a run.

    Attributes:
        run: its name.
        rows: that it meets, in this order.
        takeover: whether it fences the driver that has the run.
        diverts: whether it puts rows of live runs aside.
        limited: whether it stages one row less than it claims.
    """

    run: str
    rows: tuple[Row, ...]
    takeover: bool
    diverts: bool
    limited: bool = False


class History:
    """One interleaving.

    Args:
        seed: of all its choices.
        rules: the rules.
    """

    def __init__(self, seed: int, rules: Rules) -> None:
        self.chance = random.Random(seed)
        self.rules = rules
        self.world = World(rules, keys=self.chance.randint(2, 4))
        self.drivers = list(self._drivers())
        self.begun: dict[int, tuple[int, int]] = {}
        self.due = {
            run: frozenset.intersection(
                *(frozenset(key for _, key in each.rows) for each in self.drivers if each.run == run)
            )
            for run in {each.run for each in self.drivers}
        }

    def play(self) -> str | None:
        """The promise that was broken, in the first state in which one is."""
        actors = [self._driver(number, each) for number, each in enumerate(self.drivers)]
        for number, each in enumerate(self.drivers):
            if self.chance.random() < 0.5:
                actors.append(self._straggler(number, self.chance.choice(each.rows)))
        weights = self._weights(len(actors))
        for _ in range(MOST_STEPS):
            if not actors:
                break
            if self.chance.random() < 0.05:
                weights = self._weights(len(actors))
            if self.chance.random() < 0.08:
                self._lapse()
            actor = self.chance.choices(actors, weights[: len(actors)])[0]
            try:
                if next(actor):
                    self._lapse()
            except StopIteration:
                actors.remove(actor)
            if wrong := self.world.wrong(self.due):
                return wrong
        return None

    def _weights(self, count: int) -> list[float]:
        return [self.chance.choice((0.05, 0.3, 1, 1)) for _ in range(count)]

    def _lapse(self) -> None:
        runs = self.world.runs
        leased = [name for name, run in runs.items() if run.leased and run.state in (OPEN, PREPARED)]
        if leased and self.chance.random() < 0.3:
            name = self.chance.choice(leased)
            runs[name] = replace(runs[name], leased=False)

    def _drivers(self) -> Iterator[Driver]:
        chance, keys = self.chance, range(self.world.keys)

        def some(frame: int) -> set[Row]:
            return {(frame, key) for key in chance.sample(keys, chance.randint(1, len(keys)))}

        for run, many in (
            ("a", chance.randint(2, 3)),
            ("b", chance.randint(1, 2)),
            ("c", chance.randint(0, 1)),
        ):
            base = sorted(some(0) | (some(1) if chance.random() < 0.25 else set()))
            takeover, diverts = chance.random() < 0.4, chance.random() < 0.3
            for _ in range(many):
                less = [row for row in base if chance.random() < 0.7] or base[:1]
                rows = base if chance.random() < 0.6 else less
                limited = chance.random() < 0.1
                yield Driver(
                    run,
                    tuple(chance.sample(rows, len(rows))),
                    takeover and chance.random() < 0.7,
                    diverts,
                    limited,
                )

    def _driver(self, number: int, driver: Driver) -> Steps:
        world, rules, name = self.world, self.rules, driver.run
        while True:
            yield False
            run = world.runs.get(name)
            if run is None or run.state == ABORTED:
                run = Run(1 if run is None else run.generation + 1, OPEN, 1, leased=True)
                break
            if run.state == COMMITTED:
                return
            if not run.leased or driver.takeover or not rules.waits:
                run = replace(run, epoch=run.epoch + 1, leased=True)
                break
            yield True
        world.runs[name] = run
        generation, epoch = run.generation, run.epoch
        self.begun[number] = generation, epoch
        mine: frozenset[Row] = frozenset()
        if run.state == OPEN or not rules.frozen:
            claimed = yield from self._claim_all(driver, generation, epoch)
            if claimed is None:
                return
            mine = frozenset(sorted(claimed)[: len(claimed) - driver.limited])
            folder = world.folder(name, generation, epoch)
            yield False
            world.staged[folder] = mine if rules.own_folder else world.staged.get(folder, frozenset()) | mine
            if not (yield from self._prepare(driver, generation, epoch)):
                return
        yield from self._publish(number, driver, generation, epoch, mine)

    def _claim_all(self, driver: Driver, generation: int, epoch: int) -> Iterator[bool]:
        world, name = self.world, driver.run
        mine: set[Row] = set()
        for row in driver.rows:
            while True:
                yield False
                if not self.rules.atomic and row[1] not in world.claims:
                    # Read, checked, and inserted in another step.
                    if world.fenced(name, generation, epoch) or world.runs[name].state != OPEN:
                        return None
                    yield False
                    world.claims.setdefault(row[1], Claim(name, generation, epoch, row[0]))
                    continue
                verdict = world.claim(name, generation, epoch, row)
                if verdict == "fenced":
                    return None
                if verdict == "mine":
                    mine.add(row)
                if verdict == "wait" and driver.diverts:
                    at = (name, generation, epoch)
                    world.diverted[at] = world.diverted.get(at, frozenset()) | {row[1]}
                if verdict in ("mine", "duplicate") or (verdict == "wait" and driver.diverts):
                    break
                if verdict == "wait":
                    yield True
        return mine

    def _prepare(self, driver: Driver, generation: int, epoch: int) -> Iterator[bool]:
        world, rules, name = self.world, self.rules, driver.run
        folder = world.folder(name, generation, epoch)
        if rules.counts == "before":
            yield False
            if world.marked(name) != len(world.staged[folder]):
                return False
        yield False
        run = world.runs[name]
        if run.generation != generation or run.state == ABORTED:
            return False
        if not rules.prepared:
            return run.state == OPEN
        if rules.fences_prepare and run.epoch != epoch:
            return False
        if run.state != OPEN:
            return run.state == PREPARED
        if rules.counts == "atomic" and world.marked(name) != len(world.staged[folder]):
            world.runs[name] = replace(run, state=ABORTED)  # refused, and given up
            return False
        world.runs[name] = replace(run, state=PREPARED, attempt=epoch)
        return True

    def _publish(
        self, number: int, driver: Driver, generation: int, epoch: int, mine: frozenset[Row]
    ) -> Steps:
        world, rules, name = self.world, self.rules, driver.run
        yield False
        run = world.runs[name]
        attempt = run.attempt if rules.frozen and rules.prepared and run.generation == generation else epoch
        body = (
            world.staged.get(world.folder(name, generation, attempt), frozenset()) if rules.frozen else mine
        )
        tag: object = attempt if rules.publishes != "overwrite" else ("job", number)
        rows = frozenset((tag, row) for row in body)
        if rules.publishes == "once":
            world.published.setdefault(name, rows)
        elif rules.publishes != "pointer":
            if rules.publishes == "overwrite":
                world.published[name] = frozenset()
                yield False
            for each in sorted(rows, key=repr):
                world.published[name] = world.published.get(name, frozenset()) | {each}
                yield False
        yield False
        run = world.runs[name]
        expected = PREPARED if rules.prepared else OPEN
        if (
            run.generation == generation
            and run.state == expected
            and (not rules.fences_commit or run.epoch == epoch)
        ):
            world.runs[name] = replace(run, state=COMMITTED)
            if rules.publishes == "pointer":
                world.published[name] = rows

    def _straggler(self, number: int, row: Row) -> Steps:
        """A task that its driver does not wait for: it claims late, and stages its row later."""
        world, name = self.world, self.drivers[number].run
        while number not in self.begun:
            yield True
        generation, epoch = self.begun[number]
        yield False
        if not self.rules.atomic and row[1] not in world.claims:
            if world.fenced(name, generation, epoch) or world.runs[name].state != OPEN:
                return
            yield False
            world.claims.setdefault(row[1], Claim(name, generation, epoch, row[0]))
            return
        was_open = world.runs[name].state == OPEN
        if world.claim(name, generation, epoch, row) != "mine" or self.rules.manifest or not was_open:
            return
        yield False
        folder = world.folder(name, generation, epoch)
        if folder in world.staged:
            world.staged[folder] |= {(row[0] + 10, row[1])}
