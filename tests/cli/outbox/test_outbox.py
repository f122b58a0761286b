"""`idempotent outbox`."""

import socket

import pytest

from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from idempotent.errors import PublishError
from idempotent.migrations import downgrade, upgrade
from idempotent.outbox import Outbox, Relay
from idempotent.policy import Backoff
from tests.cli.outbox.sending import send, until
from tests.support.logs import logged
from tests.support.tables import new_name


class Refusing(MemoryAdapter):
    def __init__(self):
        super().__init__(MemoryBroker())
        self.published, self.refuses = [], {"a"}

    def publish_many(self, messages):
        refused = {place: "no queue" for place, message in enumerate(messages) if message.id in self.refuses}
        self.published += [message.id for place, message in enumerate(messages) if place not in refused]
        if refused:
            raise PublishError("refused", refused=refused)


def held(outbox, store):
    """Messages a and b wait, because the broker refuses a; c is published."""
    send(outbox, store, "a", "b", order_key="k")
    adapter = Refusing()
    relay = Relay(outbox, adapter, poll_s=0.05, backoff=Backoff(initial_s=600.0, maximum_s=600.0))
    return relay, adapter


def words(store):
    return ["--url", store.url, "--table", store.table]


def test_stats_list_and_show_say_what_waits_and_why(cli, outbox, sql_store):
    send(outbox, sql_store, "later", delay_s=600)
    relay, _ = held(outbox, sql_store)
    with relay:
        until(lambda: outbox.store.stats().held == 2)
        answer = cli("outbox", "stats", *words(sql_store), "--json").line
        assert {name: answer[name] for name in ("waiting", "held", "lanes", "delayed", "relays")} == {
            "waiting": 0,
            "held": 2,
            "lanes": 1,
            "delayed": 1,
            "relays": 1,
        }
    lines = cli("outbox", "stats", *words(sql_store)).out.splitlines()
    assert {"waiting: 0", "held: 2", "lanes: 1", "delayed: 1", "relays: 0"} <= {*lines}
    assert not [
        line for line in lines if line.startswith("oldest s: ")
    ]  # only what waits for a relay is late
    assert "No relay is at work." in lines
    _, *lines = cli("outbox", "list", "--held", *words(sql_store)).out.splitlines()
    assert [line.split()[0] for line in lines] == ["a", "b"]
    assert "1 refused: no queue" in lines[0]
    assert "waits behind a" in lines[1]
    assert "due in" in cli("outbox", "list", *words(sql_store)).out.splitlines()[-1]
    assert cli("outbox", "show", "later", *words(sql_store), "--json").line["due_in_s"] > 1
    assert cli("outbox", "show", "later", *words(sql_store), "--body").out == "later"
    shown = cli("outbox", "show", "a", *words(sql_store), "--json").line
    assert (shown["order_key"], shown["reason"], shown["size"]) == ("k", "no queue", 1)
    assert cli("outbox", "show", "a", *words(sql_store), "--body").out == "a"
    assert cli("outbox", "show", "nothing", *words(sql_store)).code == 1


@pytest.mark.parametrize("named", [False, True])
def test_retry_lets_a_relay_try_again_at_once(cli, outbox, sql_store, named):
    relay, adapter = held(outbox, sql_store)
    with relay:
        until(lambda: outbox.store.stats().held == 2)
        adapter.refuses.clear()
        answer = cli("outbox", "retry", *(["a"] if named else []), *words(sql_store), "--json").line
        assert answer == {"lanes": 1, "freed": 0}
        until(lambda: adapter.published == ["a", "b"])
    assert cli("outbox", "retry", *words(sql_store), "--json").line == {"lanes": 0, "freed": 0}


def test_drop_deletes_a_message_and_what_waits_behind_it_is_published(cli, outbox, sql_store):
    relay, adapter = held(outbox, sql_store)
    with relay:
        until(lambda: outbox.store.stats().held == 2)
        assert cli("outbox", "drop", "a", "--yes", *words(sql_store), "--json").line == {"dropped": 1}
        until(lambda: adapter.published == ["b"])
    assert cli("outbox", "drop", "a", "--yes", *words(sql_store)).code == 1


def test_drop_deletes_only_the_first_of_two_messages_with_an_id_and_logs_it(cli, outbox, sql_store, caplog):
    send(outbox, sql_store, "a", subject="first")
    send(outbox, sql_store, "a", subject="second")
    assert cli("outbox", "drop", "a", "--yes", *words(sql_store), "--json").line == {"dropped": 1}
    (said,) = logged(caplog, "outbox_message_dropped")
    assert (said.message_id, said.subject, said.messages) == ("a", "first", 1)
    assert said.by.endswith(f"@{socket.gethostname()}")
    assert cli("outbox", "show", "a", *words(sql_store), "--json").line["subject"] == "second"


def test_drop_without_an_answer_deletes_nothing(cli, outbox, sql_store):
    send(outbox, sql_store, "a")
    answer = cli("outbox", "drop", "a", *words(sql_store), "--json")
    assert answer.code == 2
    assert answer.out.strip() == ""  # click writes a space
    assert "--yes" in answer.err
    assert cli("outbox", "drop", "a", *words(sql_store), input="n\n").code == 1
    assert "oldest s: " in cli("outbox", "stats", *words(sql_store)).out
    assert outbox.store.stats().waiting == 1


def test_retry_of_an_unknown_id_is_told(cli, outbox, sql_store):
    send(outbox, sql_store, "a")
    assert cli("outbox", "retry", "a", *words(sql_store)).code == 0
    answer = cli("outbox", "retry", "nothing", *words(sql_store), "--json")
    assert answer.code == 1
    assert "No message nothing waits" in answer.err


def test_an_outbox_is_in_a_database(cli):
    answer = cli("outbox", "stats", "--url", "redis://localhost")
    assert answer.code != 0
    assert "an outbox is in an SQL database" in answer.err


@pytest.mark.parametrize("command", ["stats", "list", "show", "retry", "drop"])
def test_the_help_names_only_stores_that_have_an_outbox(cli, command):
    shown = " ".join(cli("outbox", command, "--help").out.replace("│", " ").split())
    assert "The database of the outbox" in shown
    assert "redis" not in shown


def test_a_downgrade_says_how_many_messages_go_with_it(cli, sql_store, waiting_in):
    outbox, table = waiting_in
    send(outbox, sql_store, "1", "2")
    send(outbox, sql_store, "later", delay_s=600)
    words = ["migrate", "downgrade", "--url", sql_store.url, "--table", table]
    relay = Relay(outbox, Refusing(), poll_s=0.05)
    with relay:  # it waits for its tables, and says so
        until(lambda: not outbox.store.stats().waiting)
        send(outbox, sql_store, "a", order_key="k")
        until(lambda: outbox.store.stats().held == 1)
        assert "its outbox (2 messages)" in cli(*words, input="n\n").err
        assert "2 messages of its outbox, or more, will never be published" in cli(*words, "--yes").out
        upgrade(sql_store.url, table=table)
        send(outbox, sql_store, "after")
        until(lambda: not outbox.store.stats().waiting)


@pytest.fixture
def waiting_in(sql_store):
    table = new_name()
    upgrade(sql_store.url, table=table)
    outbox = Outbox(sql_store.engine(), table=table)
    yield outbox, table
    outbox.close()
    downgrade(sql_store.url, table=table)
