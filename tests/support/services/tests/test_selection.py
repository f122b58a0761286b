"""Where the servers of the tests come from: the environment, Docker, or a private process."""

import socket
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from redis import Redis

from tests.support.services import (
    REDIS,
    Lender,
    PrivateRedis,
    PrivateServer,
    ServiceMissingError,
    ServicePool,
    SpareServers,
    is_required,
)
from tests.support.services.docker import docker_answers
from tests.support.services.selection import Source, choose
from tests.support.services.tests.running import ROOT, runs_no_more, wait_for


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


def test_without_docker_an_installed_program_is_run_privately() -> None:
    class Installed(PrivateRedis):
        @classmethod
        def missing(cls) -> None:
            return None

    assert choose(replace(REDIS, private=Installed), {}, no) is Source.PRIVATE


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


@pytest.mark.slow
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

    class Noted(PrivateRedis):
        def start(self) -> None:
            started.append(self)

    service = replace(REDIS, private=Noted)
    with closing(ServicePool(docker=no)) as pool, closing(Lender(pool, [service])) as lender:
        urls = {ServicePool(docker=no, lent=lender.ports).url(service) for _ in range(2)}
        (server,) = started
        assert urls == {server.url}
        assert server.folder.exists()
    assert not server.folder.exists()


def test_the_end_of_a_lender_starts_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REDIS.variable, raising=False)
    started = []

    class Noted(PrivateRedis):
        def start(self) -> None:
            started.append(self)

    service = replace(REDIS, private=Noted)
    with closing(ServicePool(docker=no)) as pool:
        lender = Lender(pool, [service])
        lender.close()
        wait_for(lambda: refuses(lender.ports[service.name]))
    assert started == []


def refuses(port: int) -> bool:
    """Whether no process listens there any more."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


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
