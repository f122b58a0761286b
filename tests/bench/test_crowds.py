"""The crowds of the benchmark do what they are measured for, and the targets find their figures."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from idempotent.errors import StoreError
from tests.bench.brokers import missing, open_place
from tests.bench.crowd import contenders, working
from tests.bench.crowd.calls import Crowd, rounds_of
from tests.bench.crowd.targets import targets
from tests.bench.figures import Figure, Figures, What


def measured(crowds: Sequence[Crowd], messages: int) -> Figures:
    """Two rounds of each crowd, beside figures of the same store that another part measured in other rounds."""
    others = [
        Figure(crowd.where.split()[0], who, What.FRESH, 1, 1, (1.0,), 1.0, 1.0, 1.0)
        for crowd in crowds
        for who in (crowd.who, "MemoryChecker", "RedisChecker", "SqlChecker", "idemkit")
    ]
    small = [replace(crowd, messages=messages) for crowd in crowds]
    return Figures([*others, *rounds_of(small, 2, lambda _: None)])


def judged(figures: Figures) -> list[str]:
    """What the run has a figure of."""
    return [target.what for target in targets() if target.score(figures).passed is not None]


@pytest.mark.slow
def test_a_task_is_measured_over_memory() -> None:
    figures = measured(contenders.memory(), 50)
    assert judged(figures) == ["async decorated call with MemoryChecker, over the bare coroutine"]
    ours = figures.find("Memory with many callers", "MemoryChecker")
    assert ours is not None
    assert len(ours.rounds_us) == 2
    assert 0 < ours.p50_us <= ours.p99_us


@pytest.mark.slow
def test_crowds_on_redis_are_measured_against_each_other(private_redis) -> None:
    pytest.importorskip("idemkit", reason="`make bench` installs what is measured against")
    crowds = contenders.redis(private_redis().url)
    figures = measured(crowds, 200)
    assert len(judged(figures)) == 4
    for crowd in crowds:
        assert figures.find(crowd.where, crowd.who, threads=crowd.size) is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "server"), [("MariaDB", "private_mariadb"), ("PostgreSQL", "private_postgres")]
)
def test_crowds_on_a_database_are_measured_against_each_other(where, server, request) -> None:
    figures = measured(contenders.sql(where, request.getfixturevalue(server)().url), 100)
    assert len(judged(figures)) == 6


# It starts a broker and four workers.
@pytest.mark.slow
@pytest.mark.parametrize("broker", ["RabbitMQ", "Kafka"])
def test_sleeping_tasks_of_a_worker_are_measured_over_a_broker(broker) -> None:
    absent = missing(broker)
    if absent is not None:
        pytest.skip(absent)
    with open_place(broker, 300) as place:
        figures = measured(working.over(broker, place), 300)
    (row,) = [target for target in targets() if target.what in judged(figures)]
    assert broker in row.what
    score = row.score(figures)
    assert score.value is not None
    assert score.limit is not None


def test_a_crowd_that_fails_to_process_ends_the_benchmark() -> None:
    class Refusing(contenders.MemoryChecker):
        """Claims nothing: a benchmark of it would measure nothing."""

        def _claim(self, *_: object) -> None:
            raise RuntimeError("refused")

    crowd = contenders.leased("Memory", "Refusing", lambda **_: Refusing())[1]
    with pytest.raises(StoreError, match="refused"):
        crowd.turn(10)
