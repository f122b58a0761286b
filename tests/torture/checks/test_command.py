"""`python -m tests.torture servers` from the outside: what it refuses, what it writes, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

WORDS = ["-m", "tests.torture", "servers"]


def tortured(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *WORDS, *words],
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=350,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broker", "checker", "words"),
    [
        ("memory://x", "sqlite:///{folder}/x.db", "amqp://"),
        ("amqp://localhost:1", "memory://", "forgets its keys"),
        ("amqp://localhost:1", "attempts://", "forgets its keys"),
        ("amqp://localhost:1", "offsets+sqlite:///{folder}/x.db", "kafka://"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_made(broker, checker, words, tmp_path):
    done = tortured("--broker", broker, "--checker", checker.format(folder=tmp_path))
    assert done.returncode == 3, done.stdout + done.stderr
    assert words in done.stderr


@pytest.mark.slow
def test_an_unreachable_store_is_reported_without_its_password(rabbitmq_url):
    done = tortured(
        "--broker", rabbitmq_url, "--checker", "transactional+postgresql+psycopg://u:secret@127.0.0.1:1/x"
    )
    assert done.returncode == 4, done.stdout + done.stderr
    assert "secret" not in done.stdout + done.stderr


@pytest.mark.slow
def test_it_says_what_it_does_writes_figures_and_leaves_nothing(rabbitmq_url, tmp_path):
    store = f"sqlite:///{tmp_path}/x.db"
    done = tortured(
        *("--broker", rabbitmq_url, "--checker", f"transactional+{store}"),
        *("--seconds", "3", "--seed", "5", "--processes", "2", "--figures", str(tmp_path / "figures")),
        *("--restart-broker", "true"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Seed 5" in done.stdout
    assert "Not done: cut store: no proxy" in done.stdout
    assert "nothing unexplained" in done.stdout
    assert str(urlsplit(rabbitmq_url).password) + "@" not in done.stdout + done.stderr
    assert "| RabbitMQ | transactional, sqlite |" in (tmp_path / "figures" / "figures.md").read_text()
    (line,) = (tmp_path / "figures" / "figures.jsonl").read_text().splitlines()
    assert json.loads(line)["incidents"]["restart broker"] >= 1
    engine = sa.create_engine(store)
    assert not [name for name in sa.inspect(engine).get_table_names() if name.startswith("torture_")]
    engine.dispose()


@pytest.mark.slow
def test_a_command_that_fails_to_restart_ends_the_run_with_its_words(rabbitmq_url, tmp_path):
    done = tortured(
        *("--broker", rabbitmq_url, "--checker", f"sqlite:///{tmp_path}/x.db", "--seconds", "2"),
        *("--restart-broker", "echo no such container >&2; exit 9"),
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "no such container" in done.stderr


@pytest.mark.slow
def test_with_the_checker_switched_off_the_promise_is_broken(rabbitmq_url, tmp_path):
    done = tortured(
        *("--broker", rabbitmq_url, "--checker", f"transactional+sqlite:///{tmp_path}/x.db"),
        *("--seconds", "5", "--json"),
        IDEMPOTENT_DISABLED="all",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert not report["ok"]
    assert report["unexplained"] > 0


@pytest.mark.slow
def test_ctrl_c_ends_it_and_removes_what_it_made(rabbitmq_url, tmp_path):
    store = f"sqlite:///{tmp_path}/x.db"
    process = subprocess.Popen(
        [sys.executable, *WORDS, "--broker", rabbitmq_url, "--checker", store, "--seconds", "60"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    time.sleep(8)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert "Traceback" not in out
    assert not list(tmp_path.glob("idempotent-torture-*"))
    engine = sa.create_engine(store)
    assert not [name for name in sa.inspect(engine).get_table_names() if name.startswith("torture_")]
    engine.dispose()
