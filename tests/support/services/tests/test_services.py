"""Where the servers of the tests come from, and that they obey and leave nothing behind."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from tests.support.services import (
    MYSQL,
    POSTGRES,
    REDIS,
    Lender,
    PrivateMariaDb,
    PrivatePostgres,
    PrivateRedis,
    PrivateServer,
    ServiceMissingError,
    ServicePool,
    SpareServers,
    is_required,
)
from tests.support.services.docker import docker_answers
from tests.support.services.process import runs
from tests.support.services.redis_database import numbered, own_redis_database
from tests.support.services.selection import Source, choose

ROOT = Path(__file__).parents[3]


def yes() -> bool:
    return True


def no() -> bool:
    return False


def must_not_be_asked() -> bool:
    raise AssertionError


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(REDIS.variable, raising=False)


def test_a_url_in_the_environment_wins_and_docker_is_not_even_asked() -> None:
    assert choose(REDIS, {REDIS.variable: "redis://elsewhere/3"}, must_not_be_asked) is Source.ENVIRONMENT


def test_an_empty_url_in_the_environment_is_none() -> None:
    assert choose(REDIS, {REDIS.variable: ""}, yes) is Source.DOCKER


def test_docker_comes_before_a_private_process() -> None:
    assert choose(REDIS, {}, yes) is Source.DOCKER


def test_without_docker_an_installed_program_is_run_privately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrivateRedis, "missing", lambda: None)
    assert choose(REDIS, {}, no) is Source.PRIVATE


@pytest.mark.usefixtures("nothing_installed")
def test_with_nothing_at_all_one_line_says_what_to_install() -> None:
    with pytest.raises(ServiceMissingError) as raised:
        choose(REDIS, {}, no)
    line = str(raised.value)
    assert "redis-server" in line
    assert REDIS.variable in line
    assert "\n" not in line


@pytest.mark.usefixtures("nothing_installed")
def test_docker_does_not_answer_without_its_client() -> None:
    assert not docker_answers()


def test_docker_does_not_answer_when_its_client_reaches_no_daemon(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client = tmp_path / "docker"
    client.write_text("#!/bin/sh\nexit 1\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert not docker_answers()


@pytest.mark.parametrize(
    ("environ", "option", "required"),
    [({}, False, False), ({"CI": "true"}, False, True), ({"CI": "false"}, False, False), ({}, True, True)],
)
def test_a_missing_server_fails_in_ci_or_when_asked(
    environ: dict[str, str], option: bool, required: bool
) -> None:
    assert is_required(environ, option=option) is required


@pytest.mark.parametrize(
    ("variables", "options", "result"),
    [
        ({}, [], "1 skipped"),
        ({"CI": "true"}, [], "1 error"),
        ({}, ["--require-services"], "1 error"),
    ],
)
def test_the_fixture_skips_at_home_and_fails_in_ci(
    tmp_path: Path, variables: dict[str, str], options: list[str], result: str
) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_it.py").write_text("def test_it(redis_url): pass\n")
    environ = {"PATH": str(tmp_path), "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-ra", *options, "test_it.py"]
    done = subprocess.run(command, check=False, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert result in done.stdout
    assert "redis-server" in done.stdout


def test_processes_that_share_a_server_start_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REDIS.variable, raising=False)
    started = []

    def start(server: PrivateRedis) -> None:
        started.append(server)

    monkeypatch.setattr(PrivateRedis, "start", start)
    with closing(ServicePool(docker=no)) as pool, closing(Lender(pool, [REDIS])) as lender:
        urls = {ServicePool(docker=no, lent=lender.ports).url(REDIS) for _ in range(2)}
        (server,) = started
        assert urls == {server.url}
        assert server.folder.exists()
    assert not server.folder.exists()


@pytest.mark.usefixtures("nothing_installed")
def test_each_process_is_told_what_to_install() -> None:
    with closing(Lender(ServicePool(docker=no), [REDIS])) as lender:
        for _ in range(2):
            with pytest.raises(ServiceMissingError, match="redis-server"):
                ServicePool(docker=no, lent=lender.ports).url(REDIS)


def test_a_spare_server_answers_again_for_the_next_test() -> None:
    if PrivateRedis.missing():
        pytest.skip("no Redis")
    with closing(SpareServers()) as servers:
        first = servers.get(PrivateRedis)
        for harm in (PrivateServer.kill, PrivateServer.stop, PrivateServer.pause, runs_no_more):
            harm(first)
            assert servers.get(PrivateRedis) is first
            with Redis.from_url(first.url, socket_timeout=20) as client:
                assert client.ping()
        assert servers.get(PrivateRedis, "--databases", "3") is not first
    assert not first.folder.exists()


def runs_no_more(server: PrivateServer) -> None:
    """It ends without `stop` or `kill`."""
    process = psutil.Process(server.pid)
    process.kill()
    wait_for(lambda: not runs(process))


def test_each_worker_has_its_own_redis_database() -> None:
    assert numbered("redis://:pw@host:1/2?x=y", "gw3") == "redis://:pw@host:1/5?x=y"
    assert numbered("redis://host", "gw0") == "redis://host/0"


def test_a_redis_database_with_keys_in_it_is_not_touched(private_redis: Callable[..., PrivateRedis]) -> None:
    server = private_redis()
    with Redis.from_url(server.url) as client:
        client.set("theirs", 1)
        with pytest.raises(RuntimeError, match="not empty"), own_redis_database(server.url, "gw0"):
            pass
        assert client.get("theirs") == b"1"


def test_the_mysql_database_is_empty_and_utf8mb4(mysql_url: str) -> None:
    assert make_url(mysql_url).drivername == "mysql+pymysql"
    assert query(mysql_url, "SELECT @@character_set_database") == "utf8mb4"
    assert int(str(query(mysql_url, "SELECT @@max_connections"))) >= 300


def test_the_postgres_database_takes_many_connections(postgres_url: str) -> None:
    assert make_url(postgres_url).drivername == "postgresql+psycopg"
    assert int(str(query(postgres_url, "SHOW max_connections"))) >= 300


def test_mariadb_keeps_port_and_acknowledged_writes_over_a_kill(
    private_mariadb: Callable[..., PrivateMariaDb],
) -> None:
    keeps_writes_over_a_kill(private_mariadb())


def test_postgres_keeps_port_and_acknowledged_writes_over_a_kill(
    private_postgres: Callable[..., PrivatePostgres],
) -> None:
    keeps_writes_over_a_kill(private_postgres())


def keeps_writes_over_a_kill(server: PrivateServer) -> None:
    url = server.url
    run(url, "CREATE TABLE t (a INT)")
    run(url, "INSERT INTO t VALUES (7)")
    server.kill()
    with pytest.raises(OperationalError):
        query(url, "SELECT a FROM t")
    server.start()
    assert server.url == url
    assert query(url, "SELECT a FROM t") == 7
    server.restart()
    assert query(url, "SELECT a FROM t") == 7


def test_redis_keeps_acknowledged_writes_when_told_to(private_redis: Callable[..., PrivateRedis]) -> None:
    server = private_redis("--appendonly", "yes", "--appendfsync", "always")
    with Redis.from_url(server.url) as client:
        client.set("a", 1)
        server.kill()
        with pytest.raises(RedisConnectionError):
            client.get("a")
        server.start()
        assert client.get("a") == b"1"


def test_a_paused_redis_answers_after_resume(private_redis: Callable[..., PrivateRedis]) -> None:
    server = private_redis()
    with Redis.from_url(server.url, socket_timeout=0.2) as client:
        client.ping()
        server.pause()
        with pytest.raises(RedisTimeoutError):
            client.ping()
        server.resume()
        assert client.ping()


def test_a_paused_postgres_leaves_open_connections_waiting(
    private_postgres: Callable[..., PrivatePostgres],
) -> None:
    server = private_postgres()
    engine = create_engine(server.url)
    with engine.connect() as connection:
        backend = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        server.pause()
        assert psutil.Process(backend).status() == psutil.STATUS_STOPPED
        server.resume()
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    engine.dispose()


@pytest.mark.parametrize("kind", [PrivateRedis, PrivateMariaDb, PrivatePostgres])
def test_a_closed_server_is_gone_with_its_folder(
    kind: type[PrivateServer], request: pytest.FixtureRequest
) -> None:
    name = {PrivateRedis: "redis", PrivateMariaDb: "mariadb", PrivatePostgres: "postgres"}[kind]
    server = request.getfixturevalue(f"private_{name}")()
    leader = psutil.Process(server.pid)
    family = [leader, *leader.children(recursive=True)]
    server.close()
    assert not [member for member in family if runs(member)]
    assert not server.folder.exists()


@pytest.mark.parametrize("workers", ["0", "1"])
def test_ctrl_c_leaves_no_server_and_no_folder(
    private_redis: Callable[..., PrivateRedis], tmp_path: Path, workers: str
) -> None:
    del private_redis  # skips where there is no Redis
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_it.py").write_text(
        "import pathlib, time\n"
        "def test_it(redis_url):\n"
        "    pathlib.Path('started').touch()\n"
        "    time.sleep(60)\n"
    )
    # TMPDIR: whatever it makes is found there. The others are not wanted.
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    environ |= {service.variable: "unused" for service in (MYSQL, POSTGRES)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", workers, "test_it.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environ, start_new_session=True, stdout=subprocess.PIPE, text=True
    ) as session:
        wait_for((tmp_path / "started").exists)
        servers = [process for process in psutil.process_iter() if runs_in(process, tmp_path / "idem-")]
        os.killpg(session.pid, signal.SIGINT)
        session.communicate(timeout=30)
    assert len(servers) == 1
    assert not [server for server in servers if runs(server)]
    assert not list(tmp_path.glob("idem-*"))


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux does it")
def test_a_server_dies_with_the_process_that_started_it(
    private_redis: Callable[..., PrivateRedis], end: signal.Signals
) -> None:
    del private_redis  # skips where there is no Redis
    program = (
        "import sys, time\n"
        "from tests.support.services import PrivateRedis\n"
        "server = PrivateRedis()\n"
        "server.start()\n"
        "print(server.pid, server.folder, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().split()
        server = psutil.Process(int(pid))
        owner.send_signal(end)
    wait_for(lambda: not runs(server))
    shutil.rmtree(folder)


def runs_in(process: psutil.Process, folder_prefix: Path) -> bool:
    try:
        return str(process.cwd()).startswith(str(folder_prefix))
    except psutil.Error:
        return False


def wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def query(url: str, statement: str) -> object:
    with create_engine(url, poolclass=NullPool).connect() as connection:
        return connection.execute(text(statement)).scalar_one()


def run(url: str, statement: str) -> None:
    with create_engine(url, poolclass=NullPool).begin() as connection:
        connection.execute(text(statement))
