"""`idempotent keys import`, and `keys resolve --done --create`: what was processed before the library came."""

import json
import threading
from contextlib import contextmanager

import pytest

from idempotent import Backoff, Message, Outcome, Registry
from idempotent.checkers import SqlChecker
from idempotent.claims import ClaimRequest, Failure
from idempotent.keys import KeySpace
from tests.cli.support import BILLING, at, dead, done, fill, lapsed, live

CONSUMER = ("--consumer", "orders.paid:billing")


def lines(*records):
    return "".join(f"{record if isinstance(record, str) else json.dumps(record)}\n" for record in records)


def status(cli, store, name):
    answer = cli("keys", "show", f"orders.paid:billing:{name}", *at(store), "--json")
    return answer.line["status"]


def test_what_was_processed_before_is_a_duplicate_on_every_store(cli, store, tmp_path):
    path = tmp_path / "processed.jsonl"
    path.write_text(lines(*({"id": f"o-{n}", "at": "2020"} for n in range(7)), "", {"id": 7}, {"id": "o-1"}))
    answer = cli("keys", "import", str(path), *CONSUMER, *at(store), "--batch-size", "3", "--json")
    assert (answer.code, answer.line) == (0, {"imported": 8, "done_before": 1, "dead": 0, "in_progress": 0})
    assert cli("keys", "import", str(path), *CONSUMER, *at(store), "--json").line["imported"] == 0
    ran = []

    @Registry().consumer("orders.paid", group="billing", checker=store.leased())
    def bill(message):
        ran.append(message.id)

    given = [Message("orders.paid", id=name) for name in ("o-0", "o-6", "7", "o-7")]
    assert [each.outcome for each in bill.process_many(given)] == [Outcome.DUPLICATE] * 3 + [
        Outcome.PROCESSED
    ]
    assert ran == ["o-7"]


def test_what_a_person_must_look_at_and_what_runs_stays_as_it_is(cli, store):
    fill(store)
    given = lines(*({"id": name} for name in ("done", "dead", "live", "lapsed", "new")))
    answer = cli("keys", "import", "-", *CONSUMER, *at(store), input=given)
    assert answer.code == 1
    assert "2 keys marked done, 1 were done before" in answer.out
    assert "1 dead, 1 in progress" in answer.err
    found = {name: status(cli, store, name) for name in ("dead", "live", "lapsed", "new")}
    assert found == {"dead": "dead", "live": "in_progress", "lapsed": "done", "new": "done"}


def test_the_list_of_one_store_can_be_imported_into_another(cli, sqlite_store, store):
    long = KeySpace("orders.paid", "billing").key("%" * 300)
    for key in (BILLING.key("a:b c%"), BILLING.key("\N{SNOWMAN}"), long):
        done(sqlite_store, key)
    listed = cli("keys", "list", "--status", "done", *at(sqlite_store), "--json").out
    if store.kind == "sqlite":
        assert cli("keys", "reopen", "--status", "done", "--yes", *at(store)).code == 0
    assert cli("keys", "import", "-", *at(store), "--json", input=listed).line["imported"] == 3
    again = cli("keys", "list", *at(store), "--json").lines
    assert {(line["key"], line["hash"]) for line in again} == {
        (json.loads(line)["key"], json.loads(line)["hash"]) for line in listed.splitlines()
    }


def test_a_transactional_checkers_url_will_do(cli, sql_store):
    words = at(sql_store)
    words[1] = f"transactional+{words[1]}"
    assert cli("keys", "import", "-", *CONSUMER, *words, input=lines({"id": "1"}, {"id": "2"})).code == 0
    assert status(cli, sql_store, "2") == "done"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("nonsense", "line 3: "),
        ('{"ids": 1}', 'line 3: write {"id": "4711"}'),
        ('{"id": true}', "line 3: an id must be"),
        ('{"key": "a:b"}', "line 3: 'a:b' is not a key"),
        ("[" * 100_000, "line 3: "),
    ],
)
def test_a_wrong_line_is_named_and_what_stands_before_it_is_done(cli, sqlite_store, wrong, said):
    given = lines({"id": "1"}, {"id": "2"}, wrong, {"id": "4"})
    answer = cli("keys", "import", "-", *CONSUMER, *at(sqlite_store), "--batch-size", "2", input=given)
    assert answer.code == 2
    assert said in answer.err
    assert [status(cli, sqlite_store, name) for name in ("1", "2")] == ["done", "done"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--consumer"),
        (("--consumer", "nobody"), "subject:group"),
        (("--consumer", "a:b:c"), "subject:group"),
    ],
)
def test_an_id_alone_does_not_say_whose_it_is(cli, sqlite_store, words, said):
    answer = cli("keys", "import", "-", *words, *at(sqlite_store), input=lines({"id": "1"}))
    assert answer.code == 2
    assert said in answer.err


def test_a_file_that_is_not_there_is_a_usage_error(cli, sqlite_store):
    assert cli("keys", "import", "nowhere.jsonl", *CONSUMER, *at(sqlite_store)).code == 2


def test_one_key_is_created_as_done_where_it_is_said_to_be(cli, store):
    words = ("keys", "resolve", "orders.paid:billing:1", "--done", *at(store))
    refused = cli(*words)
    assert refused.code == 1
    assert "--done --create" in refused.out
    assert cli(*words, "--create", "--json").line == {
        "key": "orders.paid:billing:1",
        "was": None,
        "changed": True,
    }
    assert status(cli, store, "1") == "done"
    dead(store, BILLING.key("2"))
    live(store, BILLING.key("3"))
    lapsed(store, BILLING.key("4"))
    codes = {
        n: cli("keys", "resolve", f"orders.paid:billing:{n}", "--done", "--create", *at(store)).code
        for n in "1234"
    }
    assert codes == {"1": 0, "2": 0, "3": 1, "4": 0}
    assert [status(cli, store, name) for name in "1234"] == ["done", "done", "in_progress", "done"]


@contextmanager
def being_processed(checker, name):
    """A message whose handler runs, in a thread of its own."""
    runs, may_end = threading.Event(), threading.Event()

    @Registry().consumer("orders.paid", group="billing", checker=checker)
    def bill(message, *_):
        runs.set()
        may_end.wait(60)

    thread = threading.Thread(target=lambda: bill(Message("orders.paid", id=name)))
    thread.start()
    assert runs.wait(60)
    try:
        yield
    finally:
        may_end.set()
        thread.join()


@pytest.mark.parametrize("kind", ["leased", "transactional"])
def test_a_key_whose_handler_runs_is_left_alone_and_said_to_be(cli, store, kind):
    if kind == "transactional" and store.kind in ("redis", "sqlite"):
        pytest.skip("no transactions, or one that locks the whole file")
    with being_processed(getattr(store, kind)(), "1"):
        answer = cli("keys", "resolve", "orders.paid:billing:1", "--done", "--create", *at(store))
        assert (answer.code, "it is being processed" in answer.out) == (1, True)
        assert ("its lease ends in" if kind == "leased" else "a transaction that is still open") in answer.out
        given = lines({"id": "1"}, {"id": "2"})
        answer = cli("keys", "import", "-", *CONSUMER, *at(store), "--json", input=given)
        assert (answer.code, answer.line["imported"], answer.line["in_progress"]) == (1, 1, 1)
    assert status(cli, store, "1") == "done"


def test_a_key_that_waits_for_its_retry_was_processed_if_a_person_says_so(cli, store):
    checker = store.leased()
    for name in "12":
        claim = checker.protocol.claim(ClaimRequest(BILLING.key(name))).claim
        checker.protocol.release(
            claim, Failure("ValueError: no", max_attempts=5, backoff=Backoff(3600, 3600))
        )
    answer = cli("keys", "import", "-", *CONSUMER, *at(store), "--json", input=lines({"id": "1"}))
    assert (answer.code, answer.line["imported"], answer.line["in_progress"]) == (0, 1, 0)
    assert cli("keys", "resolve", "orders.paid:billing:2", "--done", "--create", *at(store)).code == 0
    assert [status(cli, store, name) for name in "12"] == ["done", "done"]


@pytest.mark.parametrize("words", [("orders.paid:billing:1", "--retry"), ("--status", "dead", "--done")])
def test_only_one_key_that_is_done_can_be_created(cli, sqlite_store, words):
    answer = cli("keys", "resolve", *words, "--create", *at(sqlite_store))
    assert answer.code == 2
    assert "keys import" in answer.err


def test_keys_are_kept_as_long_as_the_url_says(cli, sqlite_store):
    words = at(sqlite_store)
    words[1] += "?retention_s=7200"
    assert cli("keys", "import", "-", *CONSUMER, *words, input=lines({"id": "1"})).code == 0
    record = SqlChecker(sqlite_store.url, table=sqlite_store.table).admin().get(BILLING.key("1"))
    assert 7100 < (record.expires_at_us - record.now_us) / 1e6 <= 7200
