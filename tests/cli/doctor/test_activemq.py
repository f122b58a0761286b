"""STOMP tells little: whether the broker takes the login, and where to look for the rest."""

import secrets

from tests.cli.support import at


def levels(answer, part):
    return [line["level"] for line in answer.lines if part in line["what"]]


def test_the_broker_is_asked_and_what_stomp_does_not_tell_is_advice(cli, stomp_url):
    name = f"orders-{secrets.token_hex(6)}"
    answer = cli("doctor", "--broker", stomp_url, "--subject", name, "--json")
    assert answer.code == 0, answer.out
    assert levels(answer, "the broker answers: ActiveMQ/") == ["ok"]
    assert levels(answer, "whether the broker has a scheduler") == ["advice"]
    assert levels(answer, f"{name}.dead") == ["advice"]
    joined = "&" if "?" in stomp_url else "?"
    assert not levels(cli("doctor", "--broker", f"{stomp_url}{joined}scheduler=true", "--json"), "scheduler")
    off = cli("doctor", "--broker", f"{stomp_url}{joined}scheduler=false", "--json")
    assert levels(off, "wait in the worker's memory") == ["advice"]


def test_a_broker_that_is_not_there_has_an_exit_code_of_its_own(cli, stomp_url):
    answer = cli("doctor", "--broker", "stomp://127.0.0.1:1", "--json")
    assert (answer.code, answer.lines[0]["level"]) == (5, "error")


def test_a_broker_of_another_kind_is_not_looked_at_and_says_so(cli):
    answer = cli("doctor", "--broker", "memory://shop", "--json")
    assert (answer.code, levels(answer, "is not looked at")) == (0, ["advice"])


def test_a_broker_alone_is_not_called_healthy(cli, sqlite_store):
    said = cli("doctor", "--broker", "memory://shop").out
    assert "Healthy" not in said
    assert "No store of keys was looked at: give --url." in said
    assert cli("doctor", "--broker", "memory://shop", *at(sqlite_store)).out.endswith("Healthy.\n")


def test_a_choice_of_subjects_needs_a_broker(cli, sqlite_store):
    answer = cli("doctor", "--url", sqlite_store.url, "--subject", "orders")
    assert (answer.code, "give --broker" in answer.err) == (2, True)
    assert cli("doctor").code == 2
