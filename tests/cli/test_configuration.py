"""Options from the environment and from a file, so that no password is on the command line."""

import json

import pytest
import typer

from idempotent.cli.root import app
from tests.cli.test_replay import URL, effects, shop, write
from tests.cli.test_run import broker

__all__ = ["shop"]


def test_a_checker_s_url_may_be_in_the_environment(cli, shop, monkeypatch):
    monkeypatch.setenv("ORDERS_DB", URL)
    file = write(shop / "orders.jsonl", ("1", {}))
    answer = cli("run", "shop_consumers", *broker(file), "--checker", "db=env:ORDERS_DB", "--json")
    assert answer.code == 0
    assert effects(shop) == ["1"]


def test_what_makes_it_transactional_may_stay_outside_of_the_variable(cli, shop, monkeypatch, caplog):
    monkeypatch.setenv("ORDERS_DB", URL)
    file = write(shop / "orders.jsonl", ("1", {}))
    given = (*broker(file), "--checker", "db=transactional+env:ORDERS_DB")
    assert cli("run", "shop_consumers", *given, "--json").code == 0
    assert "handler_outside_transaction" in caplog.text, "only a transactional checker says so"
    missing = cli("run", "shop_consumers", *broker(file), "--checker", "db=transactional+env:NOT_HERE")
    assert "'NOT_HERE'" in missing.err


def test_so_may_the_broker_s_and_the_store_s(cli, shop, monkeypatch):
    file = write(shop / "orders.jsonl", ("1", {}))
    monkeypatch.setenv("SOURCE", f"file://{file}")
    monkeypatch.setenv("ORDERS_DB", URL)
    answer = cli("run", "shop_consumers", "--broker", "env:SOURCE", "--checker", "db=env:ORDERS_DB", "--json")
    assert answer.line["processed"] == 1
    assert cli("keys", "stats", "--url", "env:ORDERS_DB").code == 0


def test_a_variable_that_is_not_set_is_named(cli, shop):
    answer = cli("run", "shop_consumers", *broker("x"), "--checker", "db=env:NOT_HERE")
    assert answer.code == 3
    assert "'NOT_HERE'" in answer.err


@pytest.mark.parametrize("words", [("--config", "gc.toml", "gc"), ("gc", "--json")], ids=" ".join)
def test_an_error_is_json_wherever_that_was_said(cli, shop, words):
    (shop / "gc.toml").write_text("[gc]\njson = true\n")
    answer = cli(*words, "--url", "sqlite:///none.db")
    assert (answer.code, json.loads(answer.err)["error"]) == (4, "StoreUnavailableError")
    assert "is not set" in json.loads(cli(*words, "--url", "env:NOT_HERE").err)["message"]


@pytest.mark.parametrize("words", [("gc",), ("keys", "list")], ids=" ".join)
def test_an_unreadable_file_is_an_error_in_json_too(cli, shop, monkeypatch, words):
    monkeypatch.setenv("IDEMPOTENT_CONFIG", "none.toml")
    answer = cli(*words, "--url", URL, "--json")
    assert (answer.code, json.loads(answer.err)["error"]) == (3, "ConfigurationError")
    assert "Bad configuration" in cli(*words, "--url", URL).err


def test_a_file_may_give_every_option(cli, shop, monkeypatch):
    file = write(shop / "orders.jsonl", ("1", {}), ("2", {}))
    monkeypatch.setenv("ORDERS_DB", URL)
    (shop / "worker.toml").write_text(
        f"""
        [run]
        broker = "file://{file}"
        concurrency = 2
        json = true
        health-file = "health"

        [run.checker]
        db = "env:ORDERS_DB"
        """
    )
    answer = cli("--config", "worker.toml", "run", "shop_consumers")
    assert answer.code == 0
    assert answer.line["processed"] == 2
    assert effects(shop) == ["1", "2"]


@pytest.mark.parametrize("written", ["batch-size", "batch_size"])
def test_a_file_spells_options_as_the_command_line_does(cli, shop, written):
    (shop / "worker.toml").write_text(f"[run]\n{written} = 0\nbroker = 'memory://x'")
    answer = cli("--config", "worker.toml", "run", "shop_consumers", "--checker", f"db={URL}")
    assert "Invalid value for '--batch-size'" in answer.err


def test_an_option_that_may_be_repeated_may_have_one_value(cli, shop, monkeypatch):
    monkeypatch.setenv("QUEUES", "memory://")
    (shop / "relay.toml").write_text('[relay]\noutbox = "sqlite:///none.db"\nbroker = "env:QUEUES"')
    answer = cli("migrate", "upgrade", "--url", "sqlite:///none.db")
    answer = cli("--config", "relay.toml", "relay")
    assert answer.code == 3
    assert "a relay publishes to RabbitMQ" in answer.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[run]\nconcurency = 2", "no option 'concurency'"),
        (
            "[run]\nas_json = true",
            "no option 'as_json'; known: --batch-size, --broker, --checker, --concurrency, ",
        ),
        ("[run]\nhealth-file = 'a'\nhealth_file = 'b'", "--health-file twice"),
        ("[run]\nlog-levle = 'info'", "no option 'log-levle'"),
        ("[runn]\nconcurrency = 2", "no command 'runn'"),
        ("broker = 'file://x'", "no command 'broker'"),
        ("run = 3", "as a table"),
        ("[run", "cannot be read"),
    ],
)
def test_a_mistake_in_the_file_is_named(cli, shop, text, said):
    (shop / "worker.toml").write_text(text)
    answer = cli("--config", "worker.toml", "run", "shop_consumers", *broker("x"))
    assert answer.code == 3
    assert said in answer.err


def test_a_file_that_is_not_there_is_named(cli, shop):
    answer = cli("--config", "nowhere.toml", "run", "shop_consumers", *broker("x"))
    assert answer.code != 0
    assert "nowhere.toml" in answer.err


def url_options():
    """Each option of a command that takes the URL of a database or broker."""
    root = typer.main.get_command(app)
    waiting = [((name,), root.commands[name]) for name in root.commands]
    for words, known in waiting:
        waiting += [((*words, name), each) for name, each in getattr(known, "commands", {}).items()]
        for option in known.params:
            if option.metavar in ("URL", "NAME=URL", "[NAME=]URL"):
                yield (*words, option.opts[0])


ARGUMENTS = {
    "replay": ["-", "shop_consumers:on_paid"],
    "run": ["shop_consumers"],
    "redrive": ["shop_consumers:on_paid"],
    "dead": ["shop_consumers:on_paid"],
    "resume": ["a:b"],
}
BROKER = ["--broker", "memory://"]
MORE = {
    ("run", "--checker"): BROKER,
    ("redrive", "--checker"): BROKER,
    ("dead", "list", "--checker"): BROKER,
    ("dead", "show", "--broker"): ["a:b:c"],
    ("dead", "show", "--checker"): ["a:b:c", *BROKER],
    ("dead", "drop", "--broker"): ["--letter", "a:b:c", "--note", "why"],
    ("dead", "drop", "--checker"): ["--letter", "a:b:c", "--note", "why", *BROKER],
    ("web", "--broker"): ["shop_consumers"],
    ("web", "--checker"): ["shop_consumers", *BROKER],
    ("relay", "--outbox"): BROKER,
    ("relay", "--broker"): ["--outbox", URL],
    ("keys", "show", "--url"): ["a:b:c"],
    ("keys", "resolve", "--url"): ["a:b:c", "--done"],
    ("keys", "reopen", "--url"): ["a:b:c"],
    ("keys", "import", "--url"): ["-"],
    ("outbox", "show", "--url"): ["1"],
    ("outbox", "drop", "--url"): ["1"],
}


@pytest.mark.parametrize("words", [*url_options()], ids=" ".join)
def test_each_option_for_a_url_takes_a_variable(cli, shop, words):
    *command, option = words
    given = ["db=env:NOT_SET" if option == "--checker" else "env:NOT_SET"]
    answer = cli(*command, *ARGUMENTS.get(command[0], []), *MORE.get(words, []), option, *given)
    assert (answer.code, "'NOT_SET'" in answer.err) == (3, True)
