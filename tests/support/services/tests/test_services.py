"""The servers of the tests obey and leave nothing behind."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from tests.support.services import (
    MYSQL,
    POSTGRES,
    PrivateMariaDb,
    PrivatePostgres,
    PrivateRedis,
    PrivateServer,
)
from tests.support.services.process import runs
from tests.support.services.redis import numbered, own_redis_database
from tests.support.services.tests.running import ROOT, query, run, runs_in, wait_for


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


@pytest.mark.slow
def test_mariadb_keeps_port_and_acknowledged_writes_over_a_kill(
    private_mariadb: Callable[..., PrivateMariaDb],
) -> None:
    keeps_writes_over_a_kill(private_mariadb())


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
