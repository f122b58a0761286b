"""`idempotent keys` on every store."""

import re

import pytest

from idempotent.cli.terminal.output import plain
from idempotent.errors import forget_words, mask, url_word
from idempotent.keys import KeySpace
from tests.cli.support import BILLING, MAIL, at, dead, done, fill, live


def keys_of(answer):
    return sorted(line["key"] for line in answer.lines)


def test_list_shows_keys_with_state_and_reason(cli, store):
    fill(store)
    answer = cli("keys", "list", *at(store))
    assert answer.code == 0
    for name in ("done", "dead", "live", "lapsed"):
        assert f"orders.paid:billing:{name} " in answer.out
    assert "ValueError: no such customer" in answer.out
    assert "ends in 3 d" in answer.out
    assert re.search(r"lapsed \d+ s ago", answer.out)


def test_list_takes_filters_and_a_limit_and_speaks_json(cli, store):
    fill(store)
    answer = cli(
        "keys", "list", *at(store), "--consumer", "orders.paid:billing", "--status", "dead", "--json"
    )
    assert keys_of(answer) == ["orders.paid:billing:dead"]
    assert answer.line["status"] == "dead"
    assert answer.line["attempts"] == 1
    assert answer.line["hash"] == BILLING.key("dead").token
    answer = cli("keys", "list", *at(store), "--status", "done", "--status", "in_progress", "--json")
    assert keys_of(answer) == [f"orders.paid:billing:{name}" for name in ("done", "lapsed", "live")]
    assert keys_of(cli("keys", "list", *at(store), "--lapsed", "--json")) == ["orders.paid:billing:lapsed"]
    assert len(cli("keys", "list", *at(store), "--limit", "2", "--json").lines) == 2
    limited = cli("keys", "list", *at(store), "--limit", "2")
    assert "The first 2" in limited.err
    assert "The first" not in cli("keys", "list", *at(store), "--limit", "5").err
    assert cli("keys", "list", *at(store), "--consumer", "nobody:here").out == "No such key.\n"


def test_an_empty_list_says_what_it_cannot_see(cli, store, sqlite_store):
    running = "A transactional consumer keeps no visible key while its handler runs"
    nobody = ("--consumer", "nobody:here")
    assert running in " ".join(cli("keys", "list", *at(sqlite_store), *nobody).err.split())
    assert running in " ".join(
        cli("keys", "list", *at(sqlite_store), *nobody, "--status", "in_progress").err.split()
    )
    dead = cli("keys", "list", *at(store), *nobody, "--status", "dead")
    assert "transactional" not in dead.err
    assert dead.out == "No such key.\n"


def test_list_is_complete_for_machines_and_a_screenful_for_people(cli, sqlite_store):
    checker = sqlite_store.leased()
    from idempotent.claims import ClaimRequest

    checker.protocol.claim_many([ClaimRequest(BILLING.key(str(n))) for n in range(150)])
    assert len(cli("keys", "list", *at(sqlite_store), "--json").lines) == 150
    assert cli("keys", "list", *at(sqlite_store)).out.count("orders.paid:billing:") == 100
    assert cli("keys", "list", *at(sqlite_store), "--limit", "0").out.count("orders.paid:billing:") == 150


def test_show_tells_everything_and_what_can_be_done(cli, store):
    fill(store)
    answer = cli("keys", "show", "orders.paid:billing:dead", *at(store))
    assert answer.code == 0
    assert "ValueError: no such customer" in answer.out
    assert "keys resolve orders.paid:billing:dead --done" in answer.out
    assert (
        "If a broker delivered its message, that is a dead letter. To return it: idempotent redrive"
        in answer.out
    )
    assert "redrive" not in cli("keys", "show", "orders.paid:billing:lapsed", *at(store)).out
    answer = cli("keys", "show", BILLING.key("done").token, *at(store), "--json")
    assert answer.line["key"] == "orders.paid:billing:done"
    assert answer.line["result"] == {"charged": 7}
    assert "resolve" not in cli("keys", "show", "orders.paid:billing:live", *at(store)).out


def test_show_writes_a_result_as_it_is_stored(cli, sqlite_store):
    for result in ("20261130", '{"cents": 20261130}', "false"):
        done(sqlite_store, BILLING.key(result), result=result.encode())
        assert f"result: {result}\n" in cli("keys", "show", BILLING.key(result).token, *at(sqlite_store)).out


def test_show_of_a_key_that_is_not_stored_says_so(cli, store):
    answer = cli("keys", "show", "orders.paid:billing:nope", *at(store))
    assert answer.code == 1
    assert "Not stored" in answer.out


@pytest.mark.parametrize("text", ["nonsense", "a:b", "%FF:b:c", "12345"])
def test_what_is_no_key_is_a_usage_error(cli, sqlite_store, text):
    answer = cli("keys", "show", text, *at(sqlite_store))
    assert answer.code == 2
    assert "is not a key" in answer.err


def test_stats_count_by_consumer_and_state(cli, store):
    fill(store)
    lines = cli("keys", "stats", *at(store), "--json").lines
    found = [(line["consumer"], line["status"], line["count"], line["lapsed"]) for line in lines]
    assert found == [
        ("orders.paid:billing", "in_progress", 2, 1),
        ("orders.paid:billing", "done", 1, 0),
        ("orders.paid:billing", "dead", 1, 0),
        ("orders.paid:mail", "dead", 1, 0),
    ]
    answer = cli("keys", "stats", *at(store))
    assert answer.code == 0
    assert "orders.paid:mail" in answer.out


def test_reopen_makes_a_key_new(cli, store):
    dead(store, BILLING.key("1"))
    answer = cli("keys", "reopen", "orders.paid:billing:1", *at(store), "--json")
    assert answer.code == 0
    assert answer.line == {"key": "orders.paid:billing:1", "was": "dead", "changed": True}
    assert cli("keys", "show", "orders.paid:billing:1", *at(store)).code == 1
    assert cli("keys", "reopen", "orders.paid:billing:1", *at(store)).code == 1


def test_reopen_leaves_a_live_lease_alone_and_says_until_when(cli, store):
    live(store, BILLING.key("1"))
    answer = cli("keys", "reopen", "orders.paid:billing:1", *at(store))
    assert answer.code == 1
    assert "being processed; its lease ends in 3 d" in answer.out
    assert cli("keys", "show", "orders.paid:billing:1", *at(store)).code == 0


def test_reopen_of_a_done_key_asks_first(cli, sqlite_store):
    done(sqlite_store, BILLING.key("1"))
    words = ("keys", "reopen", "orders.paid:billing:1", *at(sqlite_store))
    assert cli(*words, input="n\n").code == 1
    assert cli(*words, input="").code == 2
    assert cli("keys", "show", "orders.paid:billing:1", *at(sqlite_store)).code == 0
    assert cli(*words, input="y\n").code == 0
    assert cli("keys", "show", "orders.paid:billing:1", *at(sqlite_store)).code == 1


def test_resolve_wants_to_know_what_became_of_it(cli, store):
    dead(store, BILLING.key("1"))
    dead(store, BILLING.key("2"))
    assert cli("keys", "resolve", "orders.paid:billing:1", *at(store)).code == 2
    assert cli("keys", "resolve", "orders.paid:billing:1", "--done", *at(store)).code == 0
    assert cli("keys", "show", "orders.paid:billing:1", *at(store), "--json").line["status"] == "done"
    assert cli("keys", "resolve", "orders.paid:billing:1", "--done", *at(store)).code == 0
    assert cli("keys", "resolve", "orders.paid:billing:2", "--retry", *at(store)).code == 0
    assert cli("keys", "show", "orders.paid:billing:2", *at(store)).code == 1


@pytest.mark.parametrize("words", [("reopen",), ("resolve", "--retry")])
@pytest.mark.parametrize("key", [("orders.paid:billing:1",), ("--status", "dead", "--yes")])
def test_what_is_still_to_do_about_a_dead_letter_is_said(cli, sqlite_store, words, key):
    dead(sqlite_store, BILLING.key("1"))
    answer = cli("keys", *words, *key, *at(sqlite_store))
    assert answer.code == 0
    assert (
        "If a broker delivered its message, that is a dead letter. To return it: idempotent redrive"
        in answer.err
    )


def test_doctor_and_show_know_that_a_dead_letter_stays_whose_key_is_gone(cli, sqlite_store):
    dead(sqlite_store, BILLING.key("1"))
    assert "their messages are dead letters" in cli("doctor", *at(sqlite_store)).out
    assert cli("keys", "resolve", "orders.paid:billing:1", "--retry", *at(sqlite_store)).code == 0
    shown = cli("keys", "show", "orders.paid:billing:1", *at(sqlite_store))
    assert "idempotent redrive" in shown.out + shown.err
    answer = cli("doctor", *at(sqlite_store))
    assert answer.code == 0
    assert "dead letters of brokers are not counted by the store" in answer.out
    assert "idempotent redrive" in answer.out


@pytest.mark.parametrize(
    "which",
    [
        ("orders.paid:billing:1",),
        ("orders.paid:billing:new", "--create"),
        ("--status", "dead", "--yes"),
    ],
    ids=["one", "new", "many"],
)
def test_after_done_nothing_is_to_do_and_what_copies_get_is_told(cli, sqlite_store, which):
    dead(sqlite_store, BILLING.key("1"))
    answer = cli("keys", "resolve", *which, "--done", *at(sqlite_store))
    assert answer.code == 0
    assert "redrive" not in answer.err
    assert "a copy of an HTTP request gets 409 answer-not-stored" in answer.err


def test_keys_that_differ_in_blanks_look_different(cli, sqlite_store):
    for name in ("m1", "m1 "):
        dead(sqlite_store, BILLING.key(name))
    listed = cli("keys", "list", *at(sqlite_store)).out
    assert "'orders.paid:billing:m1 '" in listed


def test_many_are_changed_after_a_question(cli, store):
    fill(store)
    words = ("keys", "reopen", "--consumer", "orders.paid:billing", "--status", "dead", *at(store))
    asked = cli(*words, input="n\n")
    assert asked.code == 1
    assert "Reopen 1 key?" in asked.err
    assert len(cli("keys", "list", *at(store), "--json").lines) == 5
    answer = cli(*words, input="y\n")
    assert answer.code == 0
    assert "1 key reopened" in answer.out
    assert keys_of(cli("keys", "list", *at(store), "--status", "dead", "--json")) == ["orders.paid:mail:dead"]


def test_nobody_to_ask_changes_nothing(cli, sqlite_store):
    dead(sqlite_store, MAIL.key("1"))
    answer = cli("keys", "reopen", "--status", "dead", *at(sqlite_store), input="")
    assert answer.code == 2
    assert "--yes" in answer.err
    assert cli("keys", "show", "orders.paid:mail:1", *at(sqlite_store)).code == 0


def test_many_at_once_leave_live_leases_alone(cli, store):
    fill(store)
    answer = cli("keys", "reopen", "--status", "in_progress", "--yes", "--json", *at(store))
    assert answer.code == 1
    assert answer.line == {"changed": 1, "left_alone": 1}
    answer = cli("keys", "resolve", "--status", "dead", "--done", "--yes", "--json", *at(store))
    assert answer.code == 0
    assert answer.line == {"changed": 2, "left_alone": 0}
    states = {line["key"]: line["status"] for line in cli("keys", "list", *at(store), "--json").lines}
    assert states == {
        "orders.paid:billing:done": "done",
        "orders.paid:billing:dead": "done",
        "orders.paid:billing:live": "in_progress",
        "orders.paid:mail:dead": "done",
    }


def test_many_means_to_say_which(cli, sqlite_store):
    assert cli("keys", "reopen", *at(sqlite_store)).code == 2
    assert cli("keys", "reopen", "--consumer", "orders.paid:billing", "--yes", *at(sqlite_store)).code == 2
    assert cli("keys", "reopen", "a:b:c", "--status", "dead", *at(sqlite_store)).code == 2


def test_an_error_with_brackets_is_shown_as_it_is(cli, sqlite_store):
    dead(sqlite_store, BILLING.key("[red]1"), "KeyError: [bold]x[/bold] [/]")
    assert "KeyError: [bold]x[/bold] [/]" in cli("keys", "list", *at(sqlite_store)).out
    shown = cli("keys", "show", "orders.paid:billing:[red]1", *at(sqlite_store))
    assert "orders.paid:billing:[red]1" in shown.out


def test_a_key_is_shown_as_it_is_typed_and_becomes_no_picture(cli, sqlite_store):
    """Rich turns the name of an emoji between colons into the emoji."""
    for group in ("package", "key", "one"):
        key = KeySpace("orders", group).key(":smile:")
        dead(sqlite_store, key, "KeyError: :bomb:")
        assert f"orders:{group}::smile:" in cli("keys", "list", *at(sqlite_store)).out
        shown = cli("keys", "show", f"orders:{group}::smile:", *at(sqlite_store)).out
        assert f"keys resolve orders:{group}::smile: --done" in shown
        assert "KeyError: :bomb:" in shown
        assert cli("keys", "resolve", f"orders:{group}::smile:", "--done", *at(sqlite_store)).code == 0


def test_what_a_terminal_would_obey_is_written_out(cli):
    assert plain("a\x1b[2J\x9b1m\x08\tb\n") == "a\\x1b[2J\\x9b1m\\x08\tb\n"
    said = cli("keys", "list", "--url", "sqlite:///\x1b[2J.db").err
    assert r"\x1b[2J.db does not exist" in said
    assert "\x1b" not in said


def test_what_is_to_be_typed_names_the_store(cli, store, monkeypatch):
    fill(store)
    named = " ".join(at(store)[2:])
    assert (":***@" in mask(store.url)) == (url_word(store.url) == "env:VARIABLE")
    monkeypatch.delenv("IDEMPOTENT_URL", raising=False)
    shown = cli("keys", "show", "orders.paid:billing:dead", *at(store)).out
    assert f"--done --url {url_word(store.url)} {named}" in " ".join(shown.split())
    monkeypatch.setenv("IDEMPOTENT_URL", store.url)
    forget_words()  # what a command before this one has remembered
    named = f"--url env:IDEMPOTENT_URL {named}"
    assert f"--done {named}" in cli("keys", "show", "orders.paid:billing:dead", *at(store)).out
    assert f"idempotent keys list --status dead {named}" in cli("doctor", *at(store)).out


@pytest.mark.parametrize("name", ["nocolon", "", ":billing", "orders.paid:", "orders.paid:billing:1"])
@pytest.mark.parametrize("command", [("list",), ("reopen", "--lapsed"), ("resolve", "--lapsed", "--done")])
def test_what_is_no_consumer_is_a_usage_error(cli, sqlite_store, command, name):
    answer = cli("keys", *command, *at(sqlite_store), "--consumer", name)
    assert answer.code == 2
    assert "subject:group" in answer.err


def test_a_long_consumer_is_found_by_its_whole_name(cli, store):
    long, other = KeySpace("t" * 249, "billing"), KeySpace("t" * 249, "mail")
    done(store, long.key("1"))
    dead(store, other.key("1"))
    answer = cli("keys", "list", *at(store), "--consumer", f"{'t' * 249}:billing", "--json")
    assert answer.line["hash"] == long.key("1").token
    answer = cli(
        "keys", "reopen", *at(store), "--consumer", f"{'t' * 249}:mail", "--status", "dead", "--yes", "--json"
    )
    assert answer.line["changed"] == 1
    assert cli("keys", "show", *at(store), other.key("1").text).code == 1
    assert cli("keys", "show", *at(store), long.key("1").text).code == 0


@pytest.mark.parametrize("action", ["--done", "--retry"])
def test_a_mistyped_consumer_is_not_a_success(cli, sqlite_store, action):
    words = ("keys", "resolve", "--consumer", "orders.payd:billing", "--status", "dead", "--yes", action)
    answer = cli(*words, *at(sqlite_store))
    assert answer.code == 1
    assert "no key of orders.payd:billing" in answer.err
    assert (
        cli("keys", "resolve", "--status", "dead", "--lapsed", "--yes", action, *at(sqlite_store)).code == 0
    )
