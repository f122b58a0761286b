"""The private RabbitMQ of the tests leaves nothing behind, not even Erlang's own daemon."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.services.process import runs

ROOT = Path(__file__).parents[4]


def family_of(pid):
    leader = psutil.Process(pid)
    return [leader, *leader.children(recursive=True)]


def wait_until_gone(family):
    deadline = time.monotonic() + 20
    while any(runs(member) for member in family):
        assert time.monotonic() < deadline, family
        time.sleep(0.05)


@pytest.mark.slow
def test_a_stopped_server_is_gone_and_comes_back_with_its_port(private_rabbitmq):
    server = private_rabbitmq()
    family = family_of(server.pid)
    assert {"epmd", "beam.smp"} <= {member.name() for member in family}
    for connection in psutil.net_connections("tcp"):
        if connection.pid == server.pid and connection.status == psutil.CONN_LISTEN:
            assert connection.laddr.ip == "127.0.0.1"
    url = server.url
    server.stop()
    wait_until_gone(family)
    server.start()
    assert server.url == url
    family = family_of(server.pid)
    server.close()
    wait_until_gone(family)
    assert not server.folder.exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux does it")
def test_it_dies_with_the_process_that_started_it(private_rabbitmq):
    del private_rabbitmq  # skips where there is no RabbitMQ
    program = (
        "import time\n"
        "from tests.support.services.rabbitmq import PrivateRabbitMq\n"
        "server = PrivateRabbitMq()\n"
        "server.start()\n"
        "print(server.pid, server.folder, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as owner:
        pid, folder = owner.stdout.readline().split()
        family = family_of(int(pid))
        owner.send_signal(signal.SIGKILL)
    wait_until_gone(family)
    shutil.rmtree(folder)
