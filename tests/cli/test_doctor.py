"""`idempotent doctor`: each thing that breaks a promise is found, and a healthy store is called so."""

import re
import shlex
import struct
from contextlib import closing

import pytest
from redis import Redis
from sqlalchemy import create_engine, make_url, text

from idempotent.checkers import checker_from_url
from idempotent.claims import ClaimRequest, Failure, Verdict
from idempotent.migrations import upgrade
from idempotent.policy import Backoff
from tests.cli.support import BILLING, IN_OWN_HISTORY, at, dead, done, fill
from tests.support.services import PrivateMariaDb, PrivatePostgres, PrivateRedis
from tests.support.stores import open_store
from tests.torture.clocks import movable_clock, no_wrong_clocks


def problems(answer):
    return [line for line in answer.lines if line["level"] not in ("ok", "advice")]


@pytest.fixture
def own(sql_store):
    """An engine on a store's database."""
    engine = create_engine(sql_store.url)
    yield engine
    engine.dispose()


def test_a_healthy_store_is_called_so(cli, sqlite_store):
    done(sqlite_store, BILLING.key("1"))
    answer = cli("doctor", *at(sqlite_store))
    assert answer.code == 0, answer.out
    assert "Healthy" in answer.out
    assert "is as this version needs it" in answer.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "said"),
    [("fsync", "fsync off"), ("synchronous_commit", "synchronous_commit is off"), (None, "")],
)
def test_postgresql_settings_are_looked_at(cli, private_postgres, setting, said):
    settings = dict.fromkeys(("fsync", "full_page_writes", "synchronous_commit"), "on")
    if setting:
        settings[setting] = "off"
    server = private_postgres(
        *[word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    )
    assert cli("migrate", "upgrade", "--url", server.url).code == 0
    answer = cli("doctor", "--url", server.url, "--json")
    assert answer.code == (1 if setting else 0)
    assert [said in line["what"] for line in problems(answer)] == ([True] if setting else [])


@pytest.mark.slow
def test_a_fresh_mariadb_is_healthy(cli, private_mariadb):
    server = private_mariadb("--innodb-flush-log-at-trx-commit=1")
    assert cli("migrate", "upgrade", "--url", server.url).code == 0
    answer = cli("doctor", "--url", server.url)
    assert answer.code == 0, answer.out
    assert "an idle transaction is ended" in answer.out


def test_what_is_wrong_with_the_keys_is_found_on_every_store(cli, store):
    fill(store)
    answer = cli("doctor", *at(store), "--json")
    assert answer.code == 1
    said = " ".join(line["what"] for line in problems(answer))
    assert "dead, waiting for a person: 2 keys" in said
    assert "their lease has ended: 1 key" in said


def test_retention_shorter_than_the_redelivery_horizon_is_an_error(cli, store):
    done(store, BILLING.key("1"), retention_s=3600.0)
    answer = cli("doctor", *at(store), "--redelivery-horizon", "7d", "--json")
    assert answer.code == 1
    (found,) = [line for line in problems(answer) if "keys are kept" in line["what"]]
    assert found["level"] == "error"
    assert found["what"].startswith("orders.paid:billing: keys are kept for 60 min, but")
    assert "retention_s=604800" in found["hint"]
    enough = cli("doctor", *at(store), "--redelivery-horizon", "1h", "--json")
    assert not [line for line in problems(enough) if "keys are kept" in line["what"]]


@pytest.mark.parametrize("horizon", ["soon", "7 days", "-1d", ""])
def test_what_is_no_duration_is_a_usage_error(cli, sqlite_store, horizon):
    answer = cli("doctor", *at(sqlite_store), "--redelivery-horizon", horizon)
    assert answer.code == 2
    assert "is not a duration" in answer.err


def test_missing_tables_are_found_and_nothing_else_is_looked_at(cli, sql_store):
    answer = cli("doctor", "--url", sql_store.url, "--table", "not_there", "--json")
    assert answer.code == 1
    (hint,) = {line["hint"] for line in answer.lines if "migrate upgrade --url " in line["hint"]}
    assert f" --table not_there --create-missing (or, {IN_OWN_HISTORY.format('not_there')})" in hint
    assert "idempotent:idempotent@" not in answer.out
    assert not [line for line in answer.lines if "waits for a person" in line["what"]]


def test_a_changed_table_is_found(cli, sql_store, own):
    with own.begin() as connection:
        connection.execute(text(f"ALTER TABLE {sql_store.table} ADD COLUMN extra INTEGER"))
    answer = cli("doctor", *at(sql_store), "--json")
    assert answer.code == 1
    assert any("extra column" in line["what"] for line in problems(answer))


def test_a_table_without_transactions_is_found(cli, request):
    for store in open_store("mysql", request):
        engine = create_engine(store.url)
        with engine.begin() as connection:
            connection.execute(text(f"ALTER TABLE {store.table} ENGINE=MyISAM"))
        engine.dispose()
        answer = cli("doctor", *at(store), "--json")
        assert any("storage engine" in line["what"] for line in problems(answer))


def test_keys_that_nobody_collects_are_found(cli, sql_store, own):
    done(sql_store, BILLING.key("1"))
    done(sql_store, BILLING.key("2"))
    assert not [p for p in problems(cli("doctor", *at(sql_store), "--json")) if "expiry" in p["what"]]
    with own.begin() as connection:
        connection.execute(text(f"UPDATE {sql_store.table} SET expires_at = fence - 90000000000"))
    answer = cli("doctor", *at(sql_store), "--json")
    (found,) = [line for line in problems(answer) if "expiry" in line["what"]]
    assert found["what"].startswith("2 keys are more than a day past their expiry")


def test_autocommit_in_the_url_is_found(cli, request):
    for store in open_store("mysql", request):
        words = at(store)
        words[1] = str(make_url(words[1]).update_query_dict({"autocommit": "true"}).render_as_string(False))
        answer = cli("doctor", *words, "--json")
        assert answer.code == 1
        assert any("autocommit" in line["what"] for line in problems(answer))


@pytest.mark.parametrize(
    ("kind", "option", "setting", "never", "in_time", "too_soon"),
    [
        ("postgres", "options", "-c idle_in_transaction_session_timeout=", 0, "60s", "5s"),
        ("mysql", "init_command", "SET SESSION wait_timeout=", 28800, 600, 5),
    ],
    ids=["postgres", "mysql"],
)
def test_a_database_that_keeps_the_transaction_of_a_machine_that_is_gone_is_found(
    cli, request, kind, option, setting, never, in_time, too_soon
):
    for store in open_store(kind, request):
        for value, level in ((never, "advice"), (in_time, "ok"), (too_soon, "warning")):
            words = at(store)
            words[1] = (
                make_url(words[1]).update_query_dict({option: f"{setting}{value}"}).render_as_string(False)
            )
            answer = cli("doctor", *words, "--json")
            (found,) = [line for line in answer.lines if "an idle transaction is ended" in line["what"]]
            assert found["level"] == level, found


@pytest.mark.slow
def test_a_server_whose_clock_stands_still_in_a_statement_is_found(cli, private_mariadb):
    server = private_mariadb("--sysdate-is-now", "--innodb-flush-log-at-trx-commit=1")
    assert cli("migrate", "upgrade", "--url", server.url).code == 0
    answer = cli("doctor", "--url", server.url, "--json")
    assert answer.code == 1
    assert any("sysdate-is-now" in line["what"] for line in problems(answer))


@pytest.mark.slow
def test_settings_under_which_a_crash_forgets_keys_are_found(cli, private_mariadb):
    server = private_mariadb("--innodb-flush-log-at-trx-commit=2")
    assert cli("migrate", "upgrade", "--url", server.url).code == 0
    answer = cli("doctor", "--url", server.url, "--json")
    assert any("innodb_flush_log_at_trx_commit is not 1" in line["what"] for line in problems(answer))
    assert not any("sysdate-is-now" in line["what"] for line in problems(answer))


def test_an_unreachable_store_is_a_finding_with_a_code_of_its_own(cli):
    answer = cli("doctor", "--url", "mysql+pymysql://me:geheim@127.0.0.1:1/db", "--json")
    assert answer.code == 4
    assert answer.line["level"] == "error"
    assert "127.0.0.1" in answer.line["what"]
    assert "geheim" not in answer.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "patience"),
    [
        (PrivateMariaDb, "read_timeout=1"),
        (PrivatePostgres, "connect_timeout=2"),
        (PrivateRedis, "socket_timeout=1"),
    ],
)
@pytest.mark.parametrize("words", [("doctor",), ("keys", "stats"), ("migrate", "check")])
def test_a_frozen_server_is_unreachable_after_a_while(cli, spare, kind, patience, words):
    server = spare(kind)
    url = f"{server.url}{'&' if '?' in server.url else '?'}{patience}"
    if "migrate" in words and kind is PrivateRedis:
        return
    server.pause()
    try:
        answer = cli(*words, "--url", url, "--json")
    finally:
        server.resume()
    assert answer.code == 4
    assert "127.0.0.1" in answer.out + answer.err


def test_redis_settings_are_looked_at(cli, private_redis):
    server = private_redis("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru")
    answer = cli("doctor", "--url", server.url, "--json")
    assert answer.code == 1
    assert any("allkeys-lru" in line["what"] for line in problems(answer))


def test_dead_keys_of_a_healthy_server_come_with_what_to_type(cli, sqlite_store):
    dead(sqlite_store, BILLING.key("1"))
    answer = cli("doctor", *at(sqlite_store))
    assert answer.code == 1
    assert "idempotent keys list --status dead" in answer.out
    assert "0 errors, 1 warning." in answer.out


def test_offsets_have_no_keys_and_the_error_says_what_to_do(cli, sqlite_store):
    answer = cli("doctor", "--url", f"offsets+{sqlite_store.url}", "--table", sqlite_store.table)
    assert answer.code == 3
    assert "leave offsets+ out" in " ".join(answer.err.split())


CLOCK = "clock has gone back"


def claim_of_a_dead_process(checker, key):
    checker.protocol.abandon(checker.protocol.claim(ClaimRequest(key)).claim)
    checker.close()


@pytest.mark.slow
@pytest.mark.parametrize("server", ["private_postgres", "private_mariadb"])
def test_keys_that_wait_longer_because_the_clock_went_back_are_a_warning(
    cli, request, server, tmp_path, monkeypatch
):
    if why := no_wrong_clocks():
        pytest.skip(why)
    clock = movable_clock(tmp_path / "clock", monkeypatch)
    url = request.getfixturevalue(server)().url
    monkeypatch.undo()
    upgrade(url)
    key = BILLING.key("1")
    claim_of_a_dead_process(checker_from_url(url), key)
    assert not any(CLOCK in line["what"] for line in cli("doctor", "--url", url, "--json").lines)
    clock.write_text("-3600\n")
    with closing(checker_from_url(url)) as checker:
        decision = checker.protocol.claim(ClaimRequest(key))
        assert decision.verdict is Verdict.IN_PROGRESS
        # The clock goes on meanwhile, on a busy machine by many seconds.
        assert 3300 < decision.retry_after_s < 3640
        (found,) = [line for line in cli("doctor", "--url", url, "--json").lines if CLOCK in line["what"]]
        said = re.search(
            r"by (\S+) min or more: 1 key in progress.* waits for up to (\S+) min", found["what"]
        )
        assert said, found
        back_min, wait_min = map(float, said.groups())
        assert 55 < back_min <= 60
        assert back_min < wait_min <= 60.5
        change = found["hint"].partition("type in SQL: ")[2]
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text(change))
        engine.dispose()
        assert checker.protocol.claim(ClaimRequest(key)).lapsed


def failed_claim(checker, key):
    claim = checker.protocol.claim(ClaimRequest(key)).claim
    checker.protocol.release(claim, Failure("TimeoutError", 5, backoff=Backoff(600.0, 600.0)))
    checker.close()


@pytest.mark.parametrize("store", ["redis"], indirect=True)
@pytest.mark.parametrize("leave", [claim_of_a_dead_process, failed_claim])
def test_keys_of_redis_that_wait_longer_because_the_clock_went_back_are_a_warning(cli, store, leave):
    leave(store.leased(), BILLING.key("1"))
    with Redis.from_url(
        store.url
    ) as client:  # no libfaketime with Redis: later times instead of an earlier clock
        name = min(client.scan_iter(match=f"{store.table}:*"), key=len)  # a failure has a key of its own
        for place in (9, 17):  # the end of the lease, and the claim (idempotent/checkers/redis/layout.py)
            (at_us,) = struct.unpack(">Q", client.getrange(name, place, place + 7))
            client.setrange(name, place, struct.pack(">Q", at_us + 3_600_000_000))
    (found,) = [line for line in problems(cli("doctor", *at(store), "--json")) if CLOCK in line["what"]]
    assert "1 key in progress" in found["what"]
    hint, _, reopen = found["hint"].partition(", or, if it may not: ")
    assert hint == "wait"
    if leave is failed_claim:
        words = shlex.split(reopen)[1:4]  # without the options: the URL has a password, and so is not shown
        assert cli(*words, *at(store), "--yes").code == 0
        assert not [line for line in problems(cli("doctor", *at(store), "--json")) if CLOCK in line["what"]]
    else:
        assert not reopen
