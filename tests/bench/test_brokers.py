"""Benchmarks that take minutes still run: each with tiny numbers, and nothing is said about time."""

import json

import pytest

from tests.bench import growth, memory
from tests.bench.brokers import BARE, REDIS, measure
from tests.bench.brokers.course import Course
from tests.bench.figures import Figures, slower
from tests.bench.growth.results import Layout
from tests.support.services import (
    PrivateMariaDb,
    PrivatePostgres,
    PrivateRabbitMq,
    PrivateRedis,
    PrivateServer,
)


def needs(*servers: type[PrivateServer]) -> None:
    for server in servers:
        absent = server.missing()
        if absent is not None:
            pytest.skip(absent)


# It starts a broker and a store, and measures six times.
@pytest.mark.slow
def test_a_queue_is_consumed_bare_and_through_a_worker() -> None:
    needs(PrivateRabbitMq, PrivateRedis)
    figures = Figures(measure(brokers=["RabbitMQ"], messages=300, rounds=2, batch=50, who=[BARE, REDIS]))
    bare = figures.find("RabbitMQ", BARE)
    for batch in (1, 50):
        through = figures.find("RabbitMQ", REDIS, batch=batch)
        assert through is not None
        assert len(through.rounds_us) == 2
        assert 0 < through.p50_us <= through.p99_us
        assert through.cpu_us > 0
        assert slower(through, bare) is not None


def test_what_a_beginning_costs_is_not_in_the_second_half() -> None:
    course = Course(ends=[(10.0, 1), (18.0, 4), (20.0, 8)])
    assert course.second_half_us == 500_000


def test_memory_is_sampled_and_judged() -> None:
    needs(PrivateRedis)
    samples = memory.measure(messages=2000, every=250, batch=50)
    assert [sample.messages for sample in samples] == list(range(250, 2001, 250))
    assert all(sample.resident_bytes > 0 and sample.descriptors > 0 for sample in samples)
    grows = [memory.Sample(n, 50_000_000 + 3_000_000 * n, 5) for n in range(8)]
    leaks_files = [memory.Sample(n, 50_000_000, 5 + n) for n in range(8)]
    assert memory.flatness([memory.Sample(n, 50_000_000 + 400_000 * n, 5) for n in range(8)]).is_flat
    assert not memory.flatness(grows).is_flat
    assert not memory.flatness(leaks_files).is_flat


@pytest.mark.parametrize(
    ("store", "server", "layouts"),
    [
        pytest.param("MariaDB", PrivateMariaDb, [Layout.BY_HASH, Layout.BY_ID], marks=pytest.mark.slow),
        pytest.param("PostgreSQL", PrivatePostgres, [Layout.BY_HASH, Layout.BY_ID], marks=pytest.mark.slow),
        pytest.param("Redis", PrivateRedis, [Layout.STRINGS], marks=pytest.mark.slow),
    ],
    ids=["mariadb", "postgresql", "redis"],
)
def test_a_store_grows_and_the_report_shows_it(tmp_path, store, server, layouts) -> None:
    needs(server)
    found = growth.measure(smallest=200, largest=2000, stores=[store], seconds=0.03, expired=500, restarted=0)
    for layout in layouts:
        mine = [(point.stored, point.batch) for point in found.points if point.layout is layout]
        assert mine == [(200, 1), (200, 100), (2000, 1), (2000, 100)]
    assert all(point.rate > 0 and point.bytes_per_key > 50 for point in found.points)
    assert [one.deleted for one in found.collections] == ([] if store == "Redis" else [500])
    page, data, *pictures = growth.write(tmp_path, found)
    assert len(json.loads(data.read_text())["points"]) == len(found.points)
    assert layouts[0] in page.read_text()
    assert [path.name for path in pictures] == ["growth-batch-1.png", "growth-batch-100.png"]
