"""Programs that the tests of the servers run and watch."""

import time
from collections.abc import Callable
from pathlib import Path

import psutil
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tests.support.services import PrivateServer
from tests.support.services.process import runs

ROOT = Path(__file__).parents[4]


def runs_no_more(server: PrivateServer) -> None:
    """It ends without `stop` or `kill`."""
    process = psutil.Process(server.pid)
    process.kill()
    # Its parent, which the server object watches, may end a moment later.
    wait_for(lambda: not runs(process) and server._process.poll() is not None)


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
