"""`idempotent pause` and `idempotent resume` on every store."""

import json

import pytest

from idempotent.admin import PAUSES
from idempotent.checkers import OffsetChecker
from idempotent.checkers.pauses import pause_of
from idempotent.keys import KeySpace
from tests.cli.support import BILLING, at, dead
from tests.support.logs import logged

NAME = BILLING.name
NOTE = ("--note", "the bank is down, OPS-12")


def test_a_pause_is_made_listed_and_ended(cli, store, caplog):
    dead(store, BILLING.key("1"))
    assert cli("pause", *at(store)).out == "No consumer is paused.\n"
    answer = cli("pause", NAME, *NOTE, *at(store))
    assert (answer.code, answer.out, answer.err) == (0, f"Done: {NAME} is paused.\n", "")
    again = cli("pause", NAME, "--note", "another", *at(store))
    assert again.code == 0
    assert f"{NAME} was paused before, since 20" in again.out
    assert "the bank is down, OPS-12" in again.out
    listed = cli("pause", *at(store))
    assert NAME in listed.out
    assert "the bank is down, OPS-12" in listed.out
    line = cli("pause", *at(store), "--json").line
    assert (line["consumer"], line["note"]) == (NAME, NOTE[1])
    assert "@" in line["by"]
    assert line["paused_s"] >= 0
    answer = cli("resume", NAME, *at(store))
    assert answer.code == 0
    assert answer.out.startswith(f"Done: {NAME} goes on. It was paused since 20")
    (said,) = logged(caplog, "pause_ended")
    assert (said.consumer, said.by, said.paused_by, said.note) == (NAME, line["by"], line["by"], NOTE[1])
    assert cli("pause", *at(store), "--json").out == ""


def test_for_machines_they_say_what_changed(cli, store):
    line = cli("pause", NAME, *at(store), "--json").line
    assert (line["changed"], line["known"]) == (True, False)
    assert cli("pause", NAME, *at(store), "--json").line["changed"] is False
    assert cli("resume", NAME, *at(store), "--json").line["changed"] is True
    answer = cli("resume", NAME, *at(store), "--json")
    assert (answer.code, answer.line) == (1, {"consumer": NAME, "changed": False})


def test_a_name_of_which_the_store_has_no_key_is_paused_with_a_warning(cli, store):
    answer = cli("pause", "orders.piad:billing", *at(store))
    assert answer.code == 0
    assert "The store has no key of orders.piad:billing: is the name right?" in answer.err
    answer = cli("resume", NAME, *at(store))
    assert answer.code == 1
    assert answer.out.startswith(f"Not paused: {NAME}. What is: idempotent pause --url ")


def test_other_commands_leave_pauses_alone(cli, store):
    dead(store, BILLING.key("1"))
    cli("pause", NAME, *at(store))
    assert cli("keys", "reopen", "--status", "dead", "--yes", *at(store), "--json").line["changed"] == 1
    assert cli("keys", "list", *at(store)).out == "No such key.\n"
    assert cli("keys", "stats", *at(store)).out == "No keys yet.\n"
    assert pause_of(store.leased(), NAME) is not None


@pytest.mark.parametrize(
    "words",
    [
        ("keys", "reopen", f"idempotent:pause:{NAME}"),
        ("keys", "reopen", PAUSES.key(NAME).hash.hex()),
        ("keys", "resolve", f"idempotent:pause:{NAME}", "--done"),
        ("keys", "resolve", f"idempotent:pause:{NAME}", "--retry"),
        ("keys", "resolve", "idempotent:pause:other:group", "--done", "--create"),
        ("keys", "resolve", "--consumer", "idempotent:pause", "--status", "dead", "--done", "--yes"),
        ("keys", "import", "-"),
        ("keys", "import", "-", "--consumer", "idempotent:pause"),
    ],
    ids=" ".join,
)
def test_no_other_command_changes_one_that_is_named(cli, sqlite_store, words):
    cli("pause", NAME, *at(sqlite_store))
    given = {"id": "other:group"} if "--consumer" in words else {"key": "idempotent:pause:other:group"}
    answer = cli(*words, *at(sqlite_store), input=json.dumps(given))
    assert answer.code in (2, 3)
    assert "to end a pause, `idempotent resume`" in " ".join(answer.err.replace("│", " ").split())
    assert pause_of(sqlite_store.leased(), NAME) is not None
    assert sqlite_store.leased().admin().get(PAUSES.key("other:group")) is None
    assert "keys resolve" not in cli("keys", "show", f"idempotent:pause:{NAME}", *at(sqlite_store)).out


def test_doctor_advises_to_think_of_it(cli, store):
    cli("pause", NAME, *NOTE, *at(store))
    found = [line for line in cli("doctor", *at(store), "--json").lines if NAME in line["what"]]
    (finding,) = found
    assert finding["level"] == "advice"
    assert "is paused since" in finding["what"]
    assert "the bank is down, OPS-12" in finding["what"]
    assert finding["hint"].startswith(f"idempotent resume {NAME} --url ")
    assert "wait for a person" not in cli("doctor", *at(store)).out.replace("no key waits for a person", "")


@pytest.mark.parametrize("consumer", ["orders", "a:b:c", ":b", "\udcff:g", "g:\udcff"])
def test_what_is_no_consumer_s_name_is_refused(cli, sqlite_store, consumer):
    for command in ("pause", "resume"):
        answer = cli(command, consumer, *at(sqlite_store))
        assert answer.code == 2
        assert "is no consumer: write it as subject:group" in answer.err


def test_a_note_needs_a_consumer(cli, sqlite_store):
    assert cli("pause", *NOTE, *at(sqlite_store)).code == 2


def test_a_url_whose_dead_keys_expire_makes_a_pause_that_stays(cli, sqlite_store):
    url = f"{sqlite_store.url}?dead_retention_s=0.001"
    assert cli("pause", NAME, "--url", url, "--table", sqlite_store.table).code == 0
    sqlite_store.age(10.0)
    sqlite_store.leased().garbage_collect()
    assert pause_of(sqlite_store.leased(), NAME) is not None


@pytest.mark.parametrize("word", ["", "transactional+"])
def test_the_url_of_a_checker_with_its_options_will_do(cli, sqlite_store, word):
    """Also for a consumer without keys, for which the store is asked whether it has offsets."""
    url = f"{word}{sqlite_store.url}?table={sqlite_store.table}" + ("" if word else "&lease_s=5")
    for command in ("pause", "resume"):
        assert cli(command, NAME, "--url", url).code == 0
    assert cli("offsets", "show", "--url", url).out == "No offsets yet.\n"


def test_consumers_of_an_offset_checker_are_refused(cli, sql_store):
    offsets = OffsetChecker(sql_store.engine(), table=sql_store.table)
    partition = KeySpace("orders.paid", "billing").key("topic/0")
    offsets.begin({partition: 0})
    answer = cli("pause", NAME, *at(sql_store))
    assert answer.code == 3
    assert "the consumers of OffsetChecker cannot be paused" in answer.err
    assert cli("pause", "--url", f"offsets+{sql_store.url}").code == 3
    assert pause_of(sql_store.leased(), NAME) is None
    offsets.close()
