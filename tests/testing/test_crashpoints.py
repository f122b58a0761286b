"""A crash point kills or pauses a real process at the step it names, and nowhere else."""

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from idempotent.errors import ConfigurationError
from idempotent.testing import CrashPlan, reach
from idempotent.testing.crashpoints import CRASH_VARIABLE, POINTS, CrashKind, arm

ROOT = Path(__file__).parents[2]
CHILD = """
    import sys

    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session
    from idempotent import Message, Registry
    from idempotent.checkers import SqlChecker, TransactionalSqlChecker
    from idempotent.testing import around, crash_points, reach

    kind, url, way = sys.argv[1:]
    engine = create_engine(url)
    checker = crash_points({"leased": SqlChecker, "transactional": TransactionalSqlChecker}[kind](engine))
    registry = Registry()

    if kind == "leased":
        def handle(message):
            print("effect", message.id, flush=True)
            if message.id == "bad":
                raise ValueError(message.id)
    else:
        def handle(message, session: Session):
            print("effect", message.id, flush=True)

    consumer = registry.consumer("orders", checker=checker)(around(handle, "effect"))
    acknowledge = around(lambda: print("acked", flush=True), "ack")
    messages = [Message("orders", id=id) for id in ("1", "2", "3")]
    if way == "group":
        consumer.process_many(messages)
        acknowledge()
    else:
        for message in [*messages, Message("orders", id="bad")] if way == "bad" else messages:
            consumer.process(message)
            acknowledge()
    with engine.begin():
        pass  # an application's own COMMIT passes no point
    checker.close()
    engine.dispose()
    print("end", flush=True)
"""


@pytest.fixture
def start(database):
    """Run a consumer of the messages 1, 2, 3 in a process of its own."""
    started = []

    def start(point, kind="leased", way="single"):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(CHILD), kind, f"sqlite:///{database}", way],
            cwd=ROOT,
            env={**os.environ, CRASH_VARIABLE: point},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def statuses(database):
    connection = sqlite3.connect(database)
    rows = connection.execute("SELECT k, status FROM deduplicate_tbl").fetchall()
    connection.close()
    names = {1: "claimed", 4: "done"}
    return {text.rpartition(":")[2]: names[status] for text, status in rows}


def crash(process, point):
    """What the process printed until it was killed at the point."""
    printed, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, said
    assert f"kill at {point}" in said
    return printed.splitlines()


FIRST = ["effect 1", "acked"]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("point", "printed", "left"),
    [
        ("before_claim", [], {}),
        ("after_claim", [], {"1": "claimed"}),
        ("before_effect", [], {"1": "claimed"}),
        ("after_effect", ["effect 1"], {"1": "claimed"}),
        ("before_complete", ["effect 1"], {"1": "claimed"}),
        ("after_complete", ["effect 1"], {"1": "done"}),
        ("before_ack", ["effect 1"], {"1": "done"}),
        ("after_ack", FIRST, {"1": "done"}),
        ("after_claim:2", FIRST, {"1": "done", "2": "claimed"}),
        ("kill:before_complete:2", [*FIRST, "effect 2"], {"1": "done", "2": "claimed"}),
    ],
)
def test_a_leased_consumer_dies_where_it_is_told(start, database, point, printed, left):
    assert crash(start(point), point.removeprefix("kill:").partition(":")[0]) == printed
    assert statuses(database) == left


@pytest.mark.parametrize(("point", "left"), [("before_release", {"bad": "claimed"}), ("after_release", {})])
def test_a_failing_consumer_dies_where_it_is_told(start, database, point, left):
    crash(start(point, way="bad"), point)
    assert statuses(database) == {"1": "done", "2": "done", "3": "done"} | left


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("point", "printed", "left"),
    [
        ("after_claim", [], {}),
        ("after_effect", ["effect 1"], {}),
        ("before_commit", ["effect 1"], {}),
        ("after_commit", ["effect 1"], {"1": "done"}),
        ("after_complete", ["effect 1"], {"1": "done"}),
        ("before_commit:2", [*FIRST, "effect 2"], {"1": "done"}),
    ],
)
def test_a_transactional_consumer_dies_where_it_is_told(start, database, point, printed, left):
    assert crash(start(point, "transactional"), point.partition(":")[0]) == printed
    assert statuses(database) == left


def test_a_group_passes_the_points_of_its_checker_once(start, database):
    crash(start("after_claim", way="group"), "after_claim")
    assert statuses(database) == dict.fromkeys("123", "claimed")


def test_a_group_passes_the_points_of_its_handler_for_each_message(start, database):
    assert crash(start("after_effect:2", way="group"), "after_effect") == ["effect 1", "effect 2"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("point", ["after_claim:4", "after_commit:4", "before_renew"])
@pytest.mark.parametrize("kind", ["leased", "transactional"])
def test_a_point_that_is_not_passed_so_often_changes_nothing(start, database, point, kind):
    process = start(point, kind)
    printed, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert printed.splitlines()[-1] == "end"
    assert statuses(database) == dict.fromkeys("123", "done")


def test_a_paused_process_stalls_until_it_is_continued(start, database):
    process = start("pause:after_effect")
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert statuses(database) == {"1": "claimed"}
    process.send_signal(signal.SIGCONT)
    printed, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "pause at after_effect" in said
    assert printed.splitlines()[-1] == "end"
    assert statuses(database) == dict.fromkeys("123", "done")


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("after_claim", CrashPlan("after_claim")),
        ("after_claim:17", CrashPlan("after_claim", 17)),
        ("kill:before_ack", CrashPlan("before_ack")),
        ("pause:after_effect", CrashPlan("after_effect", kind=CrashKind.PAUSE)),
        ("pause:after_effect:2", CrashPlan("after_effect", 2, CrashKind.PAUSE)),
    ],
)
def test_a_plan_is_read_from_text(text, plan):
    assert CrashPlan.parse(text) == plan


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pause",
        "claim",
        "after_lunch",
        "after_claim:0",
        "after_claim:x",
        "after_claim:-1",
        "after_claim:1:2",
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(text):
    with pytest.raises(ConfigurationError):
        CrashPlan.parse(text)


def test_an_unknown_point_lists_the_known_ones(monkeypatch):
    monkeypatch.delenv(CRASH_VARIABLE, raising=False)
    with pytest.raises(ConfigurationError, match=r"after_lunch.*before_commit"):
        reach("after_lunch")


def test_without_a_plan_every_point_is_passed(monkeypatch):
    monkeypatch.delenv(CRASH_VARIABLE, raising=False)
    for point in POINTS:
        reach(point)


def test_a_plan_given_to_a_running_process_does_not_change_its_environment(monkeypatch):
    """The C library reads the environment without a lock."""
    monkeypatch.delenv(CRASH_VARIABLE, raising=False)
    arm(CrashPlan("after_claim", nth=99))
    assert CRASH_VARIABLE not in os.environ
    arm(None)
