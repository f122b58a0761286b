"""`idempotent replay`: files through one consumer, in this process and in one of its own."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import idempotent
from idempotent.registry import default_registry
from tests.cli.shop import CONSUMERS

URL = "sqlite:///app.db"
TARGET = ["shop_consumers:on_paid", "--checker", f"db={URL}"]


@pytest.fixture
def shop(project, cli):
    (project / "shop_consumers.py").write_text(CONSUMERS)
    assert cli("migrate", "upgrade", "--url", URL).code == 0
    yield project
    default_registry._consumers.pop("orders.paid:billing", None)
    default_registry._checkers.pop("db", None)


def write(path, *orders, end=""):
    lines = [json.dumps({"id": name, "body": body}) for name, body in orders]
    path.write_text("\n".join(lines) + "\n" + end)
    return str(path)


def effects(folder):
    path = folder / "effects.txt"
    return sorted(path.read_text().split()) if path.exists() else []


def command(*words, **options):
    environment = {**os.environ, "PYTHONPATH": str(Path(idempotent.__file__).parents[1])}
    return subprocess.Popen([sys.executable, "-m", "idempotent.cli", *words], env=environment, **options)


def test_each_message_takes_effect_once_however_often_it_is_replayed(cli, shop):
    file = write(shop / "orders.jsonl", ("1", {}), ("2", {}), ("1", {}), ("3", {}))
    answer = cli("replay", file, *TARGET, "--json")
    assert answer.code == 0
    assert (answer.line["processed"], answer.line["duplicate"]) == (3, 1)
    again = cli("replay", file, *TARGET, "--batch-size", "3", "--json")
    assert again.code == 0
    assert (again.line["processed"], again.line["duplicate"]) == (0, 4)
    assert effects(shop) == ["1", "2", "3"]


def test_the_table_at_the_end_tells_what_happened(cli, shop):
    file = write(shop / "orders.jsonl", ("1", {}), ("1", {}))
    answer = cli("replay", file, *TARGET)
    assert answer.code == 0
    rows = {words[0]: words[1] for line in answer.out.splitlines() if len(words := line.split()) > 1}
    assert (rows["processed"], rows["duplicate"], rows["settled"]) == ("1", "1", "2")


def test_a_malformed_line_goes_to_the_reject_file_and_the_rest_goes_on(cli, shop):
    file = write(shop / "orders.jsonl", ("1", {}), end='{broken\n{"id": "2", "body": {}}\n')
    answer = cli("replay", file, *TARGET)
    assert answer.code == 1
    assert effects(shop) == ["1", "2"]
    assert f"{file}:2: not JSON" in answer.err
    assert f"{file}.rejects.jsonl" in answer.err
    (reject,) = [json.loads(line) for line in Path(f"{file}.rejects.jsonl").read_text().splitlines()]
    assert (reject["file"], reject["line"], reject["text"]) == (file, 2, "{broken")


def test_the_reject_file_can_be_chosen_and_is_told_to_machines(cli, shop):
    file = write(shop / "orders.jsonl", ("1", {}), end="[]\n")
    answer = cli("replay", file, *TARGET, "--rejects", "bad.jsonl", "--json")
    assert answer.code == 1
    assert (answer.line["malformed"], answer.line["rejects"]) == (1, "bad.jsonl")
    assert (shop / "bad.jsonl").exists()
    assert cli("replay", write(shop / "good.jsonl", ("3", {})), *TARGET, "--json").line["rejects"] is None


def test_a_message_that_fails_is_tried_again_and_then_dead(cli, shop):
    file = write(shop / "orders.jsonl", ("1", {"flaky": True}), ("2", {"bad": True}), ("3", {}))
    answer = cli("replay", file, *TARGET, "--json")
    assert answer.code == 1
    assert {name: answer.line[name] for name in ("processed", "failed", "dead")} == {
        "processed": 1,
        "failed": 1,
        "dead": 2,
    }
    kept = cli("keys", "list", "--url", URL, "--status", "dead", "--json").lines
    assert {line["last_error"] for line in kept} == {
        "ConnectionError: the bank is down",
        "ValueError: no such customer",
    }


def test_lines_can_be_bodies_with_the_id_in_a_field(cli, shop):
    (shop / "bodies.jsonl").write_text('{"order_id": 7}\n{"order_id": 7}\n')
    answer = cli("replay", "bodies.jsonl", *TARGET, "--id-field", "order_id", "--json")
    assert answer.line["processed"] == 1
    assert effects(shop) == ["7"]


def test_a_consumer_of_a_registry_of_its_own_is_found(cli, shop):
    file = write(shop / "mail.jsonl", ("1", {}))
    answer = cli("replay", file, "shop_consumers:on_mail", "--checker", f"db={URL}", "--json")
    assert answer.code == 0
    assert answer.line["consumer"] == "mail:default"


@pytest.mark.slow
def test_a_file_is_replayed_to_an_async_handler(cli, shop):
    file = write(shop / "calls.jsonl", ("1", {}), ("2", {"bad": True}), ("1", {}))
    answer = cli("replay", file, "shop_consumers:on_call", "--checker", f"db={URL}", "--json")
    assert (answer.code, answer.line["processed"], answer.line["dead"]) == (1, 1, 1)
    assert effects(shop) == ["1"]


def test_standard_input_is_a_file_too(shop):
    with command(
        "replay", "-", *TARGET, "--json", stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=shop
    ) as child:
        out, _ = child.communicate(b'{"id": "1", "body": {}}\n{"id": "2", "body": {}}\n', timeout=60)
    assert child.returncode == 0
    assert json.loads(out)["processed"] == 2
    assert effects(shop) == ["1", "2"]


def test_a_file_that_is_not_there_has_a_code_of_its_own(cli, shop):
    answer = cli("replay", "nope.jsonl", *TARGET)
    assert answer.code == 5
    assert "nope.jsonl" in answer.err


@pytest.mark.slow
@pytest.mark.parametrize("batch", ["1", "10"])
def test_ctrl_c_finishes_what_runs_and_the_next_run_goes_on(shop, batch):
    orders = [(str(number), {"sleep_s": 0.005}) for number in range(300)]
    file = write(shop / "orders.jsonl", *orders)
    words = ("replay", file, *TARGET, "--batch-size", batch, "--json")
    with command(*words, stdout=subprocess.PIPE, cwd=shop) as child:
        until = time.monotonic() + 30
        while len(effects(shop)) < 20 and time.monotonic() < until:
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=60)
    assert child.returncode == 130
    assert json.loads(out)["finished"] is False
    some = len(effects(shop))
    assert 20 <= some < 300
    with command(*words, stdout=subprocess.PIPE, cwd=shop) as child:
        out, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    assert json.loads(out)["processed"] == 300 - some
    assert effects(shop) == sorted(name for name, _ in orders)


@pytest.mark.slow
def test_a_pipe_shows_no_progress(shop):
    file = write(shop / "orders.jsonl", *[(str(number), {"sleep_s": 0.01}) for number in range(50)])
    with command("replay", file, *TARGET, stderr=subprocess.PIPE, stdout=subprocess.PIPE, cwd=shop) as child:
        _, err = child.communicate(timeout=60)
    assert child.returncode == 0
    assert err == b""


@pytest.mark.slow
def test_a_terminal_shows_progress(shop):
    file = write(shop / "orders.jsonl", *[(str(number), {"sleep_s": 0.01}) for number in range(50)])
    screen, terminal = pty.openpty()
    with command("replay", file, *TARGET, stderr=terminal, stdout=subprocess.DEVNULL, cwd=shop) as child:
        os.close(terminal)
        shown = b"".join(iter(lambda: _read(screen), b""))
    os.close(screen)
    assert child.returncode == 0
    assert b"processed" in shown
    assert b"%" in shown


def _read(screen):
    try:
        return os.read(screen, 65536)
    except OSError:  # Linux' way to say that nobody writes any more
        return b""
