"""The contenders on one broker, in turn, round by round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import text

from idempotent.checkers import RedisChecker, TransactionalSqlChecker
from idempotent.migrations import upgrade
from tests.bench import servers
from tests.bench.brokers import places, through
from tests.bench.brokers.course import Course
from tests.bench.brokers.places import BROKERS, KafkaPlace, Place
from tests.bench.figures import Figure, What

BARE: Final = "bare client"
REDIS: Final = "RedisChecker"
TRANSACTIONAL: Final = "TransactionalSqlChecker"
# What a checker costs at the beginning of a run is in the figure of the whole, and not in this one.
SECOND_HALF: Final = f"{TRANSACTIONAL}, the second half"
BY_HAND: Final = "bare client, RedisChecker by hand"
BATCH: Final = 500

OnStep = Callable[[str], object]
_Consume = Callable[[Place, str], Course]


@dataclass(slots=True)
class _Contender:
    who: str
    batch: int
    consume: _Consume
    only: str | None = None
    courses: list[Course] = field(default_factory=list)

    def figures(self, broker: str, count: int) -> Iterator[Figure]:
        whole = [course.wall_s * 1e6 / count for course in self.courses]
        yield self._figure(broker, self.who, whole, count)
        if self.who == TRANSACTIONAL:
            halves = [course.second_half_us for course in self.courses]
            yield self._figure(broker, SECOND_HALF, halves, count)

    def _figure(self, broker: str, who: str, rounds_us: Sequence[float], count: int) -> Figure:
        calls = sorted(us for course in self.courses for us in course.calls_us)
        return Figure(
            broker,
            who,
            What.FRESH,
            self.batch,
            1,
            tuple(round(one, 3) for one in rounds_us),
            round(calls[len(calls) // 2], 1) if calls else 0.0,
            round(calls[min(len(calls) * 99 // 100, len(calls) - 1)], 1) if calls else 0.0,
            round(statistics.median(course.cpu_s * 1e6 / count for course in self.courses), 2),
        )


def measure(
    *,
    brokers: Sequence[str] = BROKERS,
    messages: int = 20_000,
    rounds: int = 3,
    batch: int = BATCH,
    who: Sequence[str] = (BARE, REDIS, TRANSACTIONAL),
    on_step: OnStep = lambda _: None,
) -> list[Figure]:
    """Consume so many messages of each broker with each contender, in each round.

    Every contender gets a queue of its own, or on Kafka a group of its own, filled before its clock starts. A broker
    that is not installed here is left out.

    Args:
        brokers: some of BROKERS.
        messages: how many, 100 bytes each.
        rounds: how often; the ratios are made round by round.
        batch: of those contenders that work in batches.
        who: some of BARE, REDIS and TRANSACTIONAL.
        on_step: told what comes next.
    """
    figures: list[Figure] = []
    with ExitStack() as stack:
        on_step("start the stores")
        contenders = list(_contenders(stack, batch, who))
        for broker in brokers:
            absent = places.missing(broker)
            if absent:
                on_step(f"{broker} left out: {absent}")
                continue
            on_step(f"start {broker}")
            with places.open_place(broker, messages) as place:
                here = [contender for contender in contenders if contender.only in (None, broker)]
                for contender in here:
                    contender.courses = []
                _rounds(broker, place, here, rounds, on_step)
            for contender in here:
                figures += contender.figures(broker, messages)
    return figures


def _rounds(
    broker: str, place: Place, contenders: Sequence[_Contender], rounds: int, on_step: OnStep
) -> None:
    for number in range(1, rounds + 1):
        # Forwards and backwards, so that nobody always has the machine after the same neighbour.
        for contender in contenders if number % 2 else reversed(contenders):
            step = f"{broker}, round {number} of {rounds}: {contender.who}, batch {contender.batch}"
            on_step(f"{step}: publish")
            subject = place.fill(lambda _: None)
            on_step(step)
            contender.courses.append(contender.consume(place, subject))


def _contenders(stack: ExitStack, batch: int, who: Sequence[str]) -> Iterator[_Contender]:
    if BARE in who:
        yield _Contender(BARE, 1, lambda place, subject: place.bare(subject))
    if REDIS in who:
        redis = servers.redis()
        stack.callback(redis.close)
        redis.start()
        yield _Contender(REDIS, 1, _through(lambda: RedisChecker(redis.url), 1))
        yield _Contender(REDIS, batch, _through(lambda: RedisChecker(redis.url), batch))
        # RabbitMQ's and ActiveMQ's own clients are slower than a worker already.
        yield _Contender(BY_HAND, batch, _by_hand(lambda: RedisChecker(redis.url)), only="Kafka")
    if TRANSACTIONAL in who:
        mariadb = servers.mariadb()
        stack.callback(mariadb.close)
        mariadb.start()
        upgrade(mariadb.url)
        checker = TransactionalSqlChecker(mariadb.url)
        stack.callback(checker.close)
        with checker.store.engine.begin() as connection:
            connection.execute(text(through.MAKE_ORDERS))
        yield _Contender(TRANSACTIONAL, batch, _through(lambda: checker, batch))


def _through(checker: Callable[[], RedisChecker | TransactionalSqlChecker], batch: int) -> _Consume:
    def consume(place: Place, subject: str) -> Course:
        return through.consume(
            place.adapter(batch),
            checker(),
            subject=subject,
            group=place.group,
            count=place.count,
            batch_size=batch,
        )

    return consume


def _by_hand(checker: Callable[[], RedisChecker]) -> _Consume:
    def consume(place: Place, subject: str) -> Course:
        assert isinstance(place, KafkaPlace)
        return place.by_hand(subject, checker())

    return consume
