"""Fixtures for the servers that tests talk to."""

import os
import signal
import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from typing import Any, NoReturn, TypeVar

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings

from tests.support.births import remember_births
from tests.support.depth import is_sampled
from tests.support.services import (
    ACTIVEMQ,
    KAFKA,
    MYSQL,
    POSTGRES,
    RABBITMQ,
    REDIS,
    SERVICES,
    Lender,
    PrivateActiveMq,
    PrivateKafka,
    PrivateMariaDb,
    PrivatePgBouncer,
    PrivatePostgres,
    PrivatePrometheus,
    PrivateRabbitMq,
    PrivateRedis,
    PrivateServer,
    Service,
    ServiceMissingError,
    ServicePool,
    SpareServers,
    is_required,
    own_database,
    own_redis_database,
)
from tests.support.stores import ALL, SHARED, SQL, Store, open_store
from tests.support.tables import TablePool

ServerT = TypeVar("ServerT", bound=PrivateServer)
POOL = pytest.StashKey[ServicePool]()
LENDER = pytest.StashKey[Lender]()
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "gw0")

# A busy machine takes its time for an example; its own 200 ms are a verdict about the machine.
settings.register_profile(
    "unhurried", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-services",
        action="store_true",
        help="fail instead of skip when a server is missing (so it is with CI=true)",
    )
    parser.addoption(
        "--no-servers",
        action="store_true",
        help="start no server, and skip the tests that need one, with CI=true too",
    )


def pytest_configure(config: pytest.Config) -> None:
    remember_births()
    # Started in the background of a shell, this process ignores Ctrl-C, and so would all that it starts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    pool = ServicePool(lent=getattr(config, "workerinput", {}).get("server_ports", {}))
    config.stash[POOL] = pool
    config.add_cleanup(pool.close)
    # Only the process that hands out the tests has `tx`: its workers share the servers it starts.
    if config.getoption("tx", None):
        lender = config.stash[LENDER] = Lender(pool, SERVICES)
        config.add_cleanup(lender.close)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """Make the cases `slow` that the marker `sample` leaves out. Here all cases of a test are known, also when only
    some are to run."""
    made = yield
    if isinstance(made, list) and made and (sample := made[0].get_closest_marker("sample")):
        (every,) = sample.args
        for index, item in enumerate(made):
            if not is_sampled(made[0].originalname, index, len(made), every):
                item.add_marker(pytest.mark.slow)
    return made


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of pytest-xdist where it gets its servers."""
    node.workerinput["server_ports"] = node.config.stash[LENDER].ports


@pytest.fixture(scope="session")
def mysql_url(pytestconfig: pytest.Config) -> Iterator[str]:
    """`mysql+pymysql://` of an empty utf8mb4 database that only this process uses."""
    with own_database(_server(pytestconfig, MYSQL), WORKER) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_url(pytestconfig: pytest.Config) -> Iterator[str]:
    """`postgresql+psycopg://` of an empty database that only this process uses."""
    with own_database(_server(pytestconfig, POSTGRES), WORKER) as url:
        yield url


@pytest.fixture(scope="session")
def mysql_tables(mysql_url: str) -> Iterator[TablePool]:
    """Tables in the database of `mysql_url`."""
    with closing(TablePool(mysql_url)) as pool:
        yield pool


@pytest.fixture(scope="session")
def postgres_tables(postgres_url: str) -> Iterator[TablePool]:
    """Tables in the database of `postgres_url`."""
    with closing(TablePool(postgres_url)) as pool:
        yield pool


@pytest.fixture(scope="session")
def redis_url(pytestconfig: pytest.Config) -> Iterator[str]:
    """`redis://` of an empty numbered database that only this process uses."""
    with own_redis_database(_server(pytestconfig, REDIS), WORKER) as url:
        yield url


@pytest.fixture(scope="session")
def kafka_bootstrap(pytestconfig: pytest.Config) -> str:
    """`host:port` of a Kafka broker on which nobody makes topics unasked."""
    return _server(pytestconfig, KAFKA)


@pytest.fixture(scope="session")
def stomp_url(pytestconfig: pytest.Config) -> str:
    """`stomp://` of a broker with a scheduler. Tests share it, so each makes destinations of its own."""
    return _server(pytestconfig, ACTIVEMQ)


@pytest.fixture(scope="session")
def rabbitmq_url(pytestconfig: pytest.Config) -> str:
    """`amqp://` of a broker. Tests share it, so each makes queues of its own."""
    return _server(pytestconfig, RABBITMQ)


@pytest.fixture(params=ALL)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Every store in turn, memory included."""
    yield from open_store(request.param, request, reuse=True)


@pytest.fixture(params=SHARED)
def shared_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Every store that processes share, in turn."""
    yield from open_store(request.param, request, reuse=True)


@pytest.fixture(params=SQL)
def sql_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Every SQL database, in turn, with an effects table. Tests use its tables one after another."""
    yield from open_store(request.param, request, reuse=True)


@pytest.fixture(params=SQL)
def altered_sql_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """As `sql_store`, with new tables whose definition a test may change."""
    yield from open_store(request.param, request)


@pytest.fixture
def pairs(store: Store) -> Iterator[sa.Table]:
    """A table with two rows, a and b, which transactions may lock in opposite order; of a module's own `store`."""
    table = sa.Table(f"{store.table}_pairs", sa.MetaData(), sa.Column("id", sa.String(9), primary_key=True))
    table.create(store.admin_engine)
    with store.admin_engine.begin() as connection:
        connection.execute(table.insert(), [{"id": "a"}, {"id": "b"}])
    yield table
    store.opened.close()  # a connection that still reads it would stop the DROP
    table.drop(store.admin_engine)


@pytest.fixture
def private_mariadb(pytestconfig: pytest.Config) -> Iterator[Callable[..., PrivateMariaDb]]:
    """`private_mariadb(*options)` starts a server for this test alone, to stop, kill or pause at will."""
    yield from _private(pytestconfig, PrivateMariaDb)


@pytest.fixture
def private_postgres(pytestconfig: pytest.Config) -> Iterator[Callable[..., PrivatePostgres]]:
    """`private_postgres(*options)`, as `private_mariadb`."""
    yield from _private(pytestconfig, PrivatePostgres)


@pytest.fixture
def private_pgbouncer(pytestconfig: pytest.Config) -> Iterator[Callable[..., PrivatePgBouncer]]:
    """`private_pgbouncer(url)` starts a pooler in transaction mode before the PostgreSQL server of a URL."""
    yield from _private(pytestconfig, PrivatePgBouncer)


@pytest.fixture
def private_prometheus(pytestconfig: pytest.Config) -> Iterator[Callable[..., PrivatePrometheus]]:
    """`private_prometheus(*targets, rules="")` starts a Prometheus that scrapes `host:port` twice a second."""
    yield from _private(pytestconfig, PrivatePrometheus)


@pytest.fixture
def promtool(pytestconfig: pytest.Config) -> Callable[..., None]:
    """`promtool(*words)` runs Prometheus' tool, and fails the test with what it says."""
    _require(pytestconfig, PrivatePrometheus)

    def run(*words: object) -> None:
        done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    return run


@pytest.fixture
def private_redis(pytestconfig: pytest.Config) -> Iterator[Callable[..., PrivateRedis]]:
    """`private_redis(*options)`, as `private_mariadb`."""
    yield from _private(pytestconfig, PrivateRedis)


@pytest.fixture
def private_kafka(pytestconfig: pytest.Config) -> Iterator[Callable[..., PrivateKafka]]:
    """`private_kafka(*options)`, as `private_mariadb`; an option is `"--override", "name=value"`."""
    yield from _private(pytestconfig, PrivateKafka)


@pytest.fixture(scope="session")
def spare(pytestconfig: pytest.Config) -> Iterator[Callable[..., PrivateServer]]:
    """`spare(PrivateKafka, *options)`: a running server to stop, kill or pause, which the next test gets too.

    No other process has it. It keeps its data, so a test makes queues and topics of its own.
    """
    with closing(SpareServers()) as servers:

        def get(kind: type[ServerT], *options: str) -> ServerT:
            _require(pytestconfig, kind)
            return servers.get(kind, *options)

        yield get


@pytest.fixture
def tuned_rabbitmq(spare: Callable[..., PrivateRabbitMq]) -> Iterator[PrivateRabbitMq]:
    """A spare RabbitMQ broker whose settings a test may `tune`; the next test finds the old settings."""
    server = spare(PrivateRabbitMq)
    with server.tuned():
        yield server


@pytest.fixture
def private_activemq(pytestconfig: pytest.Config) -> Iterator[Callable[..., PrivateActiveMq]]:
    """`private_activemq(*options)`, as `private_mariadb`; the options are PrivateActiveMq's words."""
    yield from _private(pytestconfig, PrivateActiveMq)


@pytest.fixture
def private_rabbitmq(pytestconfig: pytest.Config) -> Iterator[Callable[..., PrivateRabbitMq]]:
    """`private_rabbitmq(*options)`, as `private_mariadb`; an option is a line of rabbitmq.conf."""
    yield from _private(pytestconfig, PrivateRabbitMq)


def _server(config: pytest.Config, service: Service) -> str:
    _skip_without_servers(config)
    try:
        return config.stash[POOL].url(service)
    except ServiceMissingError as missing:
        _give_up(config, str(missing))


def _private(config: pytest.Config, kind: type[ServerT]) -> Iterator[Callable[..., ServerT]]:
    _require(config, kind)
    with ExitStack() as servers:

        def start(*options: str, **settings: str) -> ServerT:
            server = kind(*options, **settings)
            servers.callback(server.close)
            server.start()
            return server

        yield start


def _require(config: pytest.Config, kind: type[PrivateServer]) -> None:
    _skip_without_servers(config)
    missing = kind.missing()
    if missing is not None:
        _give_up(config, f"no private {kind.name}: {missing}")


def _skip_without_servers(config: pytest.Config) -> None:
    if config.getoption("no_servers"):
        pytest.skip("needs a server, and --no-servers starts none")


def _give_up(config: pytest.Config, reason: str) -> NoReturn:
    if is_required(os.environ, option=config.getoption("require_services")):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
