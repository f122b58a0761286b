"""`idempotent dead` and what chooses letters for `idempotent redrive`, over the broker of memory://."""

import io
import secrets
import shlex
import sys
from contextlib import closing

import pytest

from idempotent import Message, Outcome, Registry, Result, Worker
from idempotent.adapters.memory import MemoryAdapter, named_broker
from idempotent.checkers import MemoryChecker, SqlChecker
from idempotent.claims import KeyStatus
from idempotent.cli.root import app
from idempotent.keys import KeySpace
from idempotent.migrations import upgrade

CONSUMERS = """
from idempotent import Message, Registry

registry = Registry()


@registry.consumer("orders", group="billing", checker="db", max_attempts=1)
def on_order(message: Message) -> None:
    if message.body == b"odd":
        raise LookupError("no customer 'Bob'")
    raise ValueError(f"order {message.id} has no amount")
"""
KEYS = KeySpace("orders", "billing")
SCRIPT = b"<script>\x1b[2J\xff"


@pytest.fixture
def shop(project):
    """A module of consumers, a store, and a broker with four dead letters, one of them without a key."""
    module = f"shop_{secrets.token_hex(4)}"
    (project / f"{module}.py").write_text(CONSUMERS)
    upgrade("sqlite:///keys.db")
    broker = named_broker(module)
    for name in ("1", "2"):
        broker.publish(Message("orders", SCRIPT, id=name, headers={"colour": "\x1b[31mred"}))
    broker.publish(Message("orders", b"odd", id="3"))
    broker.publish(Message("orders", b"", id=None))
    namespace = {}
    exec(CONSUMERS, namespace)
    registry = namespace["registry"]
    registry.checker("db", SqlChecker("sqlite:///keys.db"))
    Worker(registry, MemoryAdapter(broker, until_empty=True)).run()
    registry.close()
    assert len(broker.dead_letters("orders")) == 4
    return module


@pytest.fixture
def run(cli, shop):
    """Runs a command for the consumer of the shop."""
    place = ("--broker", f"memory://{shop}", "--checker", "db=sqlite:///keys.db", "--idle", "0.2")

    def run(*words, **options):
        count = 1 if words[0] == "redrive" else 2
        return cli(*words[:count], f"{shop}:on_order", *words[count:], *place, **options)

    return run


def left(shop):
    return sorted(str(letter.message.id) for letter in named_broker(shop).dead_letters("orders"))


def status(name):
    checker = SqlChecker("sqlite:///keys.db")
    try:
        record = checker.admin().get(KEYS.key(name))
        return None if record is None else record.status
    finally:
        checker.close()


def test_errors_that_differ_in_ids_alone_are_one_row(run, shop):
    rows = run("dead", "list", "--json").lines
    assert [(row["letters"], row["dead_keys"], row["reason"].split(":")[0]) for row in rows] == [
        (2, 2, "ValueError"),
        (1, 1, "LookupError"),
        (1, 0, "MissingKeyError"),
    ]
    assert rows[0]["first"] <= rows[0]["last"]
    answer = run("dead", "list")
    assert answer.code == 0
    assert "ValueError: order 1 has no amount" in answer.out
    assert f"idempotent redrive {shop}:on_order --error {rows[0]['error']}" in answer.err
    assert left(shop) == ["1", "2", "3", "None"]


def test_a_module_stands_for_all_its_consumers(cli, shop):
    words = ("--broker", f"memory://{shop}", "--checker", "db=sqlite:///keys.db", "--idle", "0.2")
    for target in (f"{shop}:registry", f"{shop}:on_order"):
        rows = cli("dead", "list", target, "--json", *words).lines
        assert [(row["consumer"], row["letters"]) for row in rows] == [
            ("orders:billing", n) for n in (2, 1, 1)
        ]


@pytest.mark.parametrize("from_environment", [False, True], ids=["typed", "environment"])
def test_what_doctor_and_the_list_say_to_type_works_as_it_is(cli, shop, monkeypatch, from_environment):
    broker, store = f"memory://{shop}", "sqlite:///keys.db"
    assert cli("keys", "reopen", "--status", "dead", "--yes", "--url", store).code == 0
    words = ["--broker", broker, "--url", store]
    if from_environment:
        monkeypatch.setenv("IDEMPOTENT_BROKER", broker)
        monkeypatch.setenv("IDEMPOTENT_URL", store)
        words, broker, store = [], "env:IDEMPOTENT_BROKER", "env:IDEMPOTENT_URL"
    (said,) = (
        line["hint"]
        for line in cli("doctor", f"{shop}:registry", *words, "--json").lines
        if "dead letters of brokers" in line["what"]
    )
    typed = said.rpartition("idempotent ")[2]
    assert typed == f"dead list {shop}:registry --broker {broker} --checker db={store}"
    listed = cli(*shlex.split(typed), "--idle", "0.2")
    assert (listed.code, "order 1 has no amount" in listed.out) == (0, True)
    (again,) = (line for line in listed.err.splitlines() if line.startswith("To return a group: "))
    redrive = shlex.split(again.partition("idempotent ")[2])
    assert cli(*redrive, "--idle", "0.2", "--dry-run").code == 0


def test_a_table_of_its_own_is_in_what_doctor_says_to_type(cli, shop):
    upgrade("sqlite:///keys.db", table="own_keys")
    words = ("--broker", f"memory://{shop}", "--url", "sqlite:///keys.db", "--table", "own_keys")
    said = cli("doctor", f"{shop}:registry", *words).out
    assert "--checker db='sqlite:///keys.db?table=own_keys'" in said
    assert "MODULE --broker memory" in cli("doctor", *words).out


def test_each_letter_is_a_row_and_can_be_chosen(run):
    rows = run("dead", "list", "--by", "letter", "--json").lines
    assert {row["message_id"] for row in rows} == {"1", "2", "3", None}
    for chosen in ("orders:billing:2", KEYS.key("2").hash.hex(), "2"):
        (row,) = run("dead", "list", "--by", "letter", "--letter", chosen, "--json").lines
        assert (row["letter"], row["key"], row["attempts"]) == ("orders:billing:2", "dead", 1)
    (unnamed,) = (row for row in rows if row["message_id"] is None)
    (row,) = run("dead", "list", "--by", "letter", "--letter", unnamed["place"], "--json").lines
    assert row == unnamed
    assert len(run("dead", "list", "--by", "letter", "--since", "1h", "--json").lines) == 3
    assert "No such letter" in run("dead", "list", "--error", "00000000").out


def test_a_broker_without_dead_letters_is_told_from_a_choice_that_meets_none(cli, shop):
    words = ("--broker", f"memory://empty_{shop}", "--checker", "db=sqlite:///keys.db", "--idle", "0.2")
    assert cli("dead", "list", f"{shop}:on_order", *words).out.startswith("No dead letters.")
    assert cli("dead", "list", f"{shop}:on_order", "--letter", "1", *words).out.startswith("No such letter.")


def test_a_letter_is_shown_with_its_body_only_on_request(run):
    answer = run("dead", "show", "2")
    assert "ValueError: order 2 has no amount" in answer.out
    assert "script" not in answer.out
    assert "\x1b" not in answer.out, "a terminal would obey it"
    shown = run("dead", "show", "2", "--body")
    assert "body base64" in shown.out
    machine = run("dead", "show", "3", "--body", "--json").line
    assert (machine["body"], machine["body_bytes"], machine["key"]) == ("odd", 3, "dead")
    assert "body" not in run("dead", "show", "3", "--json").line
    assert run("dead", "show", "nothing").code == 1


def test_a_dropped_letter_is_gone_its_key_is_done_and_the_log_says_why(run, shop, caplog):
    answer = run("dead", "drop", "--letter", "3", "--note", "test data, OPS-1", "--yes")
    assert (answer.code, "1 letter of orders:billing dropped" in answer.out) == (0, True)
    assert left(shop) == ["1", "2", "None"]
    assert status("3") is KeyStatus.DONE
    (record,) = (record for record in caplog.records if record.getMessage().startswith("letter_dropped"))
    assert (record.note, record.key) == ("test data, OPS-1", "orders:billing:3")
    assert run("dead", "drop", "--letter", "3", "--note", "again", "--yes").code == 1


def test_a_drop_is_rehearsed_and_then_done(run, shop):
    (group,) = (row["error"] for row in run("dead", "list", "--json").lines if row["letters"] == 2)
    words = ("dead", "drop", "--error", group, "--note", "test data")
    rehearsed = run(*words, "--dry-run")
    assert rehearsed.code == 0
    assert "2 letters of orders:billing would be dropped. Nothing was changed." in rehearsed.out
    assert run(*words, "--dry-run", "--limit", "1", "--json").line["dropped"] == 1
    assert (left(shop), status("1"), status("2")) == (["1", "2", "3", "None"], KeyStatus.DEAD, KeyStatus.DEAD)
    assert "2 letters of orders:billing dropped" in run(*words, "--yes").out
    assert (left(shop), status("1"), status("2")) == (["3", "None"], KeyStatus.DONE, KeyStatus.DONE)
    assert run(*words, "--dry-run").code == 1, "there is none"


def test_nothing_is_dropped_without_a_choice_a_note_and_a_yes(run, shop):
    assert run("dead", "drop", "--note", "all").code == 2
    assert run("dead", "drop", "--letter", "1", "--note", " ").code == 2
    assert run("dead", "drop", "--letter", "1").code == 2
    assert run("dead", "drop", "--letter", "1", "--note", "no", input="n\n").code == 1
    assert left(shop) == ["1", "2", "3", "None"]


class Thinking(io.StringIO):
    """A person who says yes, but not before somebody else has acted."""

    def __init__(self, act):
        super().__init__("y\n")
        self._act = act

    def readline(self, *size):
        self._act()
        return super().readline(*size)


def test_a_letter_whose_key_was_reopened_while_a_person_thought_stays_and_is_named(shop, capsys, monkeypatch):
    def reopen():
        with closing(SqlChecker("sqlite:///keys.db")) as checker:
            assert checker.admin().reopen(checker.admin().get(KEYS.key("3")))

    monkeypatch.setattr(sys, "stdin", Thinking(reopen))
    words = ["dead", "drop", f"{shop}:on_order", "--letter", "3", "--note", "no", "--idle", "0.2"]
    with pytest.raises(SystemExit) as ended:
        app([*words, "--broker", f"memory://{shop}", "--checker", "db=sqlite:///keys.db"])
    said = capsys.readouterr()
    assert (ended.value.code, "0 letters of orders:billing dropped" in said.out) == (1, True)
    assert "it has changed since it was shown or read: orders:billing:3" in said.err
    with closing(SqlChecker("sqlite:///keys.db")) as checker:
        assert checker.admin().get(KEYS.key("3")) is None
    assert len(named_broker(shop).dead_letters("orders")) == 4


def test_a_letter_without_a_key_can_be_dropped_by_its_place(run, shop):
    rows = run("dead", "list", "--by", "letter", "--json").lines
    (unnamed,) = (row for row in rows if row["message_id"] is None)
    assert run("dead", "drop", "--letter", unnamed["place"], "--note", "no id", "--yes").code == 0
    assert left(shop) == ["1", "2", "3"]


def test_a_redrive_of_one_group_is_rehearsed_and_then_done(run, shop):
    (odd,) = (row["error"] for row in run("dead", "list", "--json").lines if "LookupError" in row["reason"])
    rehearsed = run("redrive", "--error", odd, "--dry-run")
    assert rehearsed.code == 0
    assert "1 message of orders:billing would be returned, 1 key reopened" in rehearsed.out
    assert (left(shop), status("3")) == (["1", "2", "3", "None"], KeyStatus.DEAD)
    assert "1 message of orders:billing returned, 1 key reopened" in run("redrive", "--error", odd).out
    assert (left(shop), status("3")) == (["1", "2", "None"], None)
    assert "returned, 1 key" in run("redrive", "--letter", "orders:billing:1", "--rate", "50").out
    assert left(shop) == ["2", "None"]


def test_dead_keys_without_a_letter_are_counted(run, shop):
    adapter = MemoryAdapter(named_broker(shop))
    reader = Registry().consumer("orders.dead", group="another client", checker=MemoryChecker())
    adapter.open([reader(lambda _: None)])
    for delivery in adapter.receive(10, 1):
        if delivery.message.id == "1":
            adapter.settle(delivery, Result(Outcome.PROCESSED))
    adapter.close()
    answer = run("dead", "list")
    assert "1 dead key of orders:billing without a letter among these" in answer.err
    assert "idempotent keys list --status dead --consumer orders:billing" in answer.err
