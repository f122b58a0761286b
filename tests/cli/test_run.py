"""`idempotent run`: a worker in a process of its own."""

import json
import signal
import subprocess
import time

import pytest

from tests.cli.test_replay import URL, command, effects, shop, write

__all__ = ["shop"]

CHECKER = ["--checker", f"db={URL}"]


def broker(path):
    return ["--broker", f"file://{path}"]


def test_a_file_is_worked_through(cli, shop):
    file = write(shop / "orders.jsonl", ("1", {}), ("1", {}), ("2", {}))
    answer = cli("run", "shop_consumers", *broker(file), *CHECKER, "--json")
    assert answer.code == 0
    assert (answer.line["processed"], answer.line["duplicate"]) == (2, 1)
    assert effects(shop) == ["1", "2"]


def test_a_registry_can_be_named(cli, shop):
    file = write(shop / "mail.jsonl", ("1", {}))
    answer = cli("run", "shop_consumers:mail", *broker(file), *CHECKER, "--concurrency", "2")
    assert answer.code == 0
    assert "mail:default" in answer.err
    assert effects(shop) == ["1"]


def test_one_of_two_groups_can_be_chosen(cli, shop):
    file = write(shop / "letters.jsonl", ("1", {}))
    refused = cli("run", "shop_consumers:letters", *broker(file), *CHECKER)
    assert refused.code == 3
    assert "a queue of its own" in refused.err
    answer = cli("run", "shop_consumers:letters", *broker(file), *CHECKER, "--consumers", "letters:two")
    assert answer.code == 0
    assert effects(shop) == ["two"]
    unknown = cli("run", "shop_consumers:letters", *broker(file), *CHECKER, "--consumers", "letters:three")
    assert unknown.code == 3
    assert "letters:two" in unknown.err


def test_what_is_served_is_said_when_it_is_served(cli, shop):
    command = ("run", "shop_consumers", "--broker", "memory://x?until_empty=true", *CHECKER)
    # A checker that nobody has registered, a misspelt name, another registry's two groups of one subject.
    for mistake in (
        command[: -len(CHECKER)],
        (*command, "--consumers", "orders.paid:biling"),
        (*command[:1], "shop_consumers:letters", *command[2:]),
    ):
        refused = cli(*mistake)
        assert refused.code == 3
        assert "Serving" not in refused.err
    assert "Serving orders.paid:billing from" in cli(*command).err


def test_of_a_module_with_a_registry_of_its_own_no_other_modules_consumers_are_run(cli, shop):
    (shop / "parked.py").write_text("import shop_consumers\nfrom shop_consumers import mail\n")
    command = ("--broker", "memory://x?until_empty=true", *CHECKER)
    refused = cli("run", "parked", *command)
    assert refused.code == 3
    assert "no consumer of parked, but those of modules that it imports: orders.paid:billing" in refused.err
    assert "parked:mail" in refused.err
    (shop / "all_of_them.py").write_text("import shop_consumers\n")
    served = cli("run", "all_of_them", *command)
    assert served.code == 0, served.err
    assert "Serving orders.paid:billing from memory://x" in served.err
    assert "the handlers of shop_consumers" in served.err


def test_dead_messages_of_a_file_show_in_the_code(cli, shop):
    file = write(shop / "orders.jsonl", ("1", {"bad": True}))
    assert cli("run", "shop_consumers", *broker(file), *CHECKER).code == 1


def test_async_handlers_are_run_as_tasks(cli, shop):
    file = write(shop / "calls.jsonl", *[(str(number), {"sleep_s": 0.2}) for number in range(50)])
    began = time.monotonic()
    words = ("run", "shop_consumers:calls", *broker(file), *CHECKER, "--concurrency", "50", "--json")
    answer = cli(*words)
    assert (answer.code, answer.line["processed"]) == (0, 50)
    assert len(effects(shop)) == 50
    assert time.monotonic() - began < 50 * 0.2, "they ran one after the other"


def test_async_handlers_that_run_too_long_at_the_end_are_cancelled_and_that_is_no_error(shop):
    write(shop / "calls.jsonl", ("1", {}), *[(str(number), {"sleep_s": 100}) for number in range(2, 30)])
    words = ("run", "shop_consumers:calls", *broker(shop / "calls.jsonl"), *CHECKER, "--json")
    more = ("--concurrency", "5", "--drain-timeout", "0.1")
    with command(*words, *more, stdout=subprocess.PIPE, cwd=shop) as child:
        until = time.monotonic() + 30
        while len(effects(shop)) < 1 and time.monotonic() < until:
            time.sleep(0.01)
        child.send_signal(signal.SIGTERM)
        out, _ = child.communicate(timeout=60)
    summary = json.loads(out)
    assert (child.returncode, summary["processed"], summary["abandoned"]) == (0, 1, 0)
    assert summary["requeued"] >= 5


@pytest.mark.slow
@pytest.mark.parametrize("target", ["shop_consumers", "shop_consumers:calls"])
def test_sigterm_finishes_what_runs(shop, target):
    name = "calls" if target.endswith("calls") else "orders"
    write(shop / f"{name}.jsonl", *[(str(number), {"sleep_s": 0.02}) for number in range(500)])
    words = ("run", target, *broker(shop / f"{name}.jsonl"), *CHECKER, "--json")
    with command(*words, stdout=subprocess.PIPE, cwd=shop) as child:
        until = time.monotonic() + 30
        while len(effects(shop)) < 5 and time.monotonic() < until:
            time.sleep(0.01)
        child.send_signal(signal.SIGTERM)
        out, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    summary = json.loads(out)
    assert summary["processed"] == len(effects(shop)) < 500
    assert summary["abandoned"] == 0


def test_the_password_of_a_broker_is_not_shown(cli, shop):
    answer = cli("run", "shop_consumers", "--broker", "nope://me:geheim@host/", *CHECKER)
    assert answer.code == 3
    assert "geheim" not in answer.out + answer.err


def test_a_broker_has_to_be_named(cli, shop):
    assert cli("run", "shop_consumers", *CHECKER).code == 2


NOWHERE = ["amqp://127.0.0.1:1", "stomp://127.0.0.1:1", "kafka://127.0.0.1:1"]


@pytest.mark.parametrize("broker_url", NOWHERE)
def test_with_fail_fast_a_broker_that_is_not_there_ends_it(cli, shop, monkeypatch, broker_url):
    monkeypatch.setattr("idempotent.adapters.kafka.brokers._ANSWER_S", 1.0)
    answer = cli("run", "shop_consumers", "--broker", broker_url, *CHECKER, "--fail-fast")
    assert answer.code == 5
    assert "cannot connect to" in answer.err
    assert "127.0.0.1:1" in answer.err
    assert "refused" in answer.err


def test_with_fail_fast_a_file_is_what_it_was(cli, shop):
    file = write(shop / "orders.jsonl", ("1", {}))
    assert cli("run", "shop_consumers", *broker(file), *CHECKER, "--fail-fast").code == 0
    assert effects(shop) == ["1"]


@pytest.mark.slow
@pytest.mark.parametrize("broker_url", NOWHERE)
def test_without_fail_fast_a_broker_that_is_not_there_is_waited_for_and_said_to_be(shop, broker_url):
    words = ("run", "shop_consumers", "--broker", broker_url, *CHECKER)
    with command(*words, stderr=subprocess.PIPE, cwd=shop) as child:
        said = b""
        while not (b"broker_unreachable" in said and b"refused" in said):
            line = child.stderr.readline()
            assert line, said
            said += line
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=60)
    assert child.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_the_log_can_be_read_by_machines(cli, shop, more):
    file = write(shop / "orders.jsonl", ("1", {"bad": True}))
    with command(
        *("run", "shop_consumers", *broker(file), *CHECKER, "--log-format", "json", *more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=shop,
    ) as child:
        _, err = child.communicate(timeout=60)
    lines = [json.loads(line) for line in err.decode().splitlines()]
    (dead,) = [line for line in lines if line["event"] == "message_dead"]
    assert dead["level"] == "error"
    assert dead["consumer"] == "orders.paid:billing"
    assert dead["message_id"] == "1"
    assert dead["error"] == "ValueError: no such customer"
    assert dead["exception"].startswith("Traceback")
    assert dead["exception"].endswith("ValueError: no such customer")


LOGGING = {
    "basicConfig": "logging.basicConfig(level=logging.ERROR, format='APP %(message)s')",
    # It disables the loggers of all modules that are imported, ours too, and so does fileConfig.
    "dictConfig": """logging.config.dictConfig({
        "version": 1,
        "formatters": {"app": {"format": "APP %(message)s"}},
        "handlers": {
            "shown": {"class": "logging.StreamHandler", "formatter": "app"},
            "file": {"class": "logging.FileHandler", "filename": "app.log", "formatter": "app"},
        },
        "root": {"level": "ERROR", "handlers": ["shown", "file"]},
    })""",
    "fileConfig": """logging.config.fileConfig(io.StringIO('''
[loggers]
keys=root
[handlers]
keys=shown,file
[formatters]
keys=app
[logger_root]
level=ERROR
handlers=shown,file
[handler_shown]
class=StreamHandler
formatter=app
args=(sys.stderr,)
[handler_file]
class=FileHandler
formatter=app
args=("app.log",)
[formatter_app]
format=APP %(message)s
'''))""",
}


@pytest.mark.parametrize("way", LOGGING)
@pytest.mark.parametrize("typed", [True, False])
def test_the_log_options_that_are_typed_win_over_the_modules_own_logging(shop, way, typed):
    module = shop / "shop_consumers.py"
    module.write_text(f"import io, logging.config\n{LOGGING[way]}\n{module.read_text()}")
    file = write(shop / "orders.jsonl", ("1", {"bad": True}))
    words = ["run", "shop_consumers", *broker(file), *CHECKER]
    words += ["--log-format", "json", "--log-level", "warning"] if typed else []
    with command(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=shop) as child:
        _, err = child.communicate(timeout=60)
    if typed:
        assert "message_dead" in [json.loads(line)["event"] for line in err.decode().splitlines()]
        assert way == "basicConfig" or "APP message_dead" in (shop / "app.log").read_text()
    else:
        assert b"APP message_dead" in err
        assert b"WARNING" not in err  # the module wants errors only, in its own form


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "json"])
def test_redacted_logs_show_neither_text_nor_traceback(cli, shop, form):
    file = write(shop / "orders.jsonl", ("1", {"bad": True}))
    words = ("run", "shop_consumers", *broker(file), *CHECKER, "--log-format", form, "--redact")
    with command(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=shop) as child:
        _, err = child.communicate(timeout=60)
    assert b"ValueError" in err
    assert b"no such customer" not in err
    assert b"Traceback" not in err


def test_with_fail_fast_a_store_that_cannot_be_used_ends_it(cli, shop):
    file = write(shop / "orders.jsonl", ("1", {}))
    empty = f"db=sqlite:///{shop / 'empty.db'}"
    answer = cli("run", "shop_consumers", *broker(file), "--checker", empty, "--fail-fast")
    assert answer.code not in (0, 1)
    assert "idempotent migrate upgrade" in answer.err
    assert effects(shop) == []
