"""The outbox's part of the benchmark runs, with tiny numbers, and each target finds its figure."""

import pytest

from tests.bench.brokers import missing, open_place
from tests.bench.contest import contest
from tests.bench.figures import Figures
from tests.bench.outbox import peer, relaying, sending
from tests.bench.outbox.names import PEER, WAITING
from tests.bench.outbox.targets import targets
from tests.bench.targets import targets as all_targets


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "server"), [("MariaDB", "private_mariadb"), ("PostgreSQL", "private_postgres")]
)
def test_each_target_has_a_figure(where: str, server: str, request: pytest.FixtureRequest) -> None:
    absent = missing("RabbitMQ")
    if absent is not None:
        pytest.skip(absent)
    url = request.getfixturevalue(server)().url
    figures = Figures(contest(sending.senders(where, url), rounds=2, seconds=0.0))
    with open_place("RabbitMQ", 300) as place:
        to = where, "RabbitMQ", place, [relaying.ours(url, place)]
        figures.all += relaying.relayed(*to, 2, lambda _: None)
        figures.all += relaying.idle(*to, 3, lambda _: None)
    few, many = WAITING
    figures.all += sending.reads(where, url, (few, many // 500), 2)
    judged = [target for target in targets() if target.score(figures).passed is not None]
    # Those of Kafka and of the peer, and the read of a million messages, were not measured.
    assert len(judged) == 4
    assert all(where in target.what for target in judged)
    assert {target.what for target in targets()} <= {target.what for target in all_targets()}


# It starts a broker, and the peer publishes its first messages twice.
@pytest.mark.slow
@pytest.mark.parametrize("broker", ["RabbitMQ", "Kafka"])
def test_our_relay_is_measured_against_the_peers(broker: str, private_postgres) -> None:
    for library in ("faststream_outbox", "aiokafka"):
        pytest.importorskip(library, reason="`make bench` installs what is measured against")
    absent = missing(broker)
    if absent is not None:
        pytest.skip(absent)
    url = private_postgres().url
    figures = Figures()
    with open_place(broker, 300) as place:
        to = "PostgreSQL", broker, place, [relaying.ours(url, place), peer.relay(url, place)]
        figures.all += relaying.relayed(*to, 1, lambda _: None)
        figures.all += relaying.idle(*to, 3, lambda _: None)
    judged = [target.what for target in targets() if target.score(figures).passed is not None]
    assert len(judged) == 4
    assert len([what for what in judged if what.endswith(f"against {PEER}")]) == 2
