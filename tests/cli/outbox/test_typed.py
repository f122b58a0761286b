"""The commands that messages say to type: typed into a shell as they are printed, they do what they promise."""

import os
import re
import secrets
import subprocess
import sys
from contextlib import closing

import pytest
import sqlalchemy as sa

from idempotent import Message, Outcome, Registry
from idempotent.checkers import MemoryChecker, RedisChecker, SqlChecker, TransactionalSqlChecker
from idempotent.claims import ClaimRequest
from idempotent.errors import ConfigurationError
from tests.cli.support import BILLING, at, dead, done, fill
from tests.support.stores import open_store

GOODS = """
from idempotent import Registry

registry = Registry()

@registry.consumer("goods", checker="db")
def ship(message):
    pass
"""
QUOTED = "it's $HOME"
# A command of a message ends at its quote, its line, its sentence or its remark in brackets.
COMMAND = re.compile(
    r"idempotent (?:keys|migrate|offsets|outbox|doctor|gc)\b[^`\n(│]*?(?=`|\n|\s*│| \(|\.(?:\s|$)|$)",
    re.MULTILINE,
)


def typed(command, url):
    """Type it."""
    here = f'idempotent() {{ "{sys.executable}" -m idempotent "$@"; }}\n{command}'
    environment = {**os.environ, "VARIABLE": url, "COLUMNS": "250", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        ["sh", "-c", here], env=environment, input="y\n", capture_output=True, text=True, check=False
    )


def situations(store, project):
    """What leads to a message with commands: the words, and the standard input."""
    words = at(store)
    imported = project / "processed.jsonl"
    imported.write_text('{"id": "dead"}\n')
    key = BILLING.key(QUOTED).text
    yield "a dead key is shown", ["keys", "show", key, *words]
    yield "a key is not stored", ["keys", "show", f"{key}?", *words]
    yield "a key is being processed", ["keys", "reopen", "orders.paid:billing:live", *words]
    yield "a consumer has no keys", ["keys", "reopen", "--consumer", "no:body", "--lapsed", *words]
    yield (
        "a key of a file is dead",
        [
            "keys",
            "import",
            str(imported),
            "--consumer",
            "orders.paid:billing",
            *words,
        ],
    )
    yield "keys wait for a person", ["doctor", *words]
    if store.kind != "redis":
        yield "an offset is not stored", ["offsets", "set", "billing", "orders", "0", "1", "--yes", *words]


@pytest.mark.slow
def test_each_command_that_a_message_has_can_be_typed(cli, store, project):
    fill(store)
    dead(store, BILLING.key(QUOTED))
    for situation, words in situations(store, project):
        answer = cli(*words)
        said = f"{answer.out}\n{answer.err}"
        commands = [each for each in COMMAND.findall(said) if " KEY" not in each]
        assert commands, (situation, said)
        for command in commands:
            done = typed(command, store.url)
            assert done.returncode == 0, (situation, command, done.stdout, done.stderr)


@pytest.mark.slow
def test_of_a_lost_table_the_first_command_makes_it_again(cli, sql_store):
    cli("migrate", "downgrade", *at(sql_store), "--yes")
    cli("migrate", "upgrade", *at(sql_store), "--create-missing")
    for words in (["keys", "stats"], ["migrate", "upgrade"]):
        with sql_store.admin_engine.begin() as connection:
            connection.exec_driver_sql(f"DROP TABLE {sql_store.table}")
        answer = cli(*words, *at(sql_store))
        said = f"{answer.out}\n{answer.err}"
        commands = COMMAND.findall(said)
        assert "backup" not in said.partition(commands[0])[0]
        for command in commands:
            done = typed(command, sql_store.url)
            assert done.returncode == 0, (said, command, done.stderr)


@pytest.mark.parametrize(
    ("value", "code", "said"),
    [
        ("nonsense", 3, "the environment variable of --checker db=transactional+env:ORDERS has no URL"),
        ("transactional+sqlite:///{}", 0, ""),
        ("sqlite:///{}", 0, ""),
    ],
)
def test_a_transactional_store_of_a_variable(cli, sqlite_store, project, monkeypatch, value, code, said):
    (project / "goods.py").write_text(GOODS)
    (project / "empty.jsonl").write_text("")
    path = sqlite_store.url.removeprefix("sqlite:///")
    monkeypatch.setenv("ORDERS", f"{value.format(path)}?table={sqlite_store.table}" if code == 0 else value)
    answer = cli("replay", "empty.jsonl", "goods:ship", "--checker", "db=transactional+env:ORDERS")
    assert (answer.code, said in " ".join(answer.err.split())) == (code, True), answer.err


def test_a_client_of_asyncio_is_told_what_serves_async_handlers(redis_url):
    import redis.asyncio

    with pytest.raises(ConfigurationError, match="synchronous one it serves `async def` handlers too"):
        RedisChecker(redis.asyncio.Redis.from_url(redis_url))


@pytest.fixture(params=["mysql", "postgres"])
def elsewhere(cli, request):
    """A store, the name of a schema that its URL does not lead to, and key tables of a name of their own in it."""
    for store in open_store(request.param, request):
        schema, table = f"s{secrets.token_hex(4)} odd", f"t{secrets.token_hex(4)}"
        quoted = f"`{schema}`" if store.kind == "mysql" else f'"{schema}"'
        with store.admin_engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE SCHEMA {quoted}")
        made = cli("migrate", "upgrade", "--url", store.url, "--table", f"{schema}.{table}")
        assert made.code == 0, made.err
        yield store, schema, table
        store.opened.close()
        with store.admin_engine.begin() as connection:
            connection.exec_driver_sql(f"DROP SCHEMA {quoted}{'' if store.kind == 'mysql' else ' CASCADE'}")


def call_that_dies_at_first(checker):
    """`call()`: the outcome of a call of one's own, whose handler raises as long as `call.bad`."""
    registry = Registry()

    @registry.consumer("orders", group="billing", checker=checker, max_attempts=1)
    def bill(message):
        if call.bad:
            raise ValueError("no such customer")

    def call():
        return bill.process(Message("orders", id=QUOTED))

    call.bad = True
    assert call().outcome is Outcome.DEAD
    call.bad = False
    return call


@pytest.mark.parametrize("kind", [SqlChecker, TransactionalSqlChecker])
def test_the_command_about_a_dead_key_reaches_tables_in_another_schema(elsewhere, kind):
    store, schema, table = elsewhere
    with closing(kind(store.engine(), table=table, schema=schema)) as checker:
        call = call_that_dies_at_first(checker)
        (command,) = COMMAND.findall(str(call().error))
        freed = typed(command, store.url)
        assert freed.returncode == 0, (command, freed.stderr)
        assert call().outcome is Outcome.PROCESSED


def test_about_a_dead_key_that_no_command_can_reach_the_error_names_none():
    error = call_that_dies_at_first(MemoryChecker())().error
    assert "reopen()" in str(error)
    assert "idempotent keys" not in str(error)


def test_commands_find_the_tables_that_the_url_of_a_checker_names(cli, elsewhere):
    store, schema, table = elsewhere
    query = {"schema": schema, "table": table, "retention_s": "60"}
    url = sa.make_url(store.url).update_query_dict(query).render_as_string(hide_password=False)
    with closing(SqlChecker(store.engine(), table=table, schema=schema)) as checker:
        checker.protocol.complete(checker.protocol.claim(ClaimRequest(BILLING.key("1"))).claim)
    for words in (["migrate", "check"], ["migrate", "current"], ["outbox", "stats"], ["gc"]):
        answer = cli(*words, "--url", url)
        assert answer.code == 0, (words, answer.out, answer.err)
    assert "orders.paid:billing:1" in cli("keys", "list", "--url", url).out
    found = cli("doctor", "--url", url).out
    assert "0 errors, " in found  # these servers are set up for tests, which is a warning
    assert f"the outbox {table}_outbox is empty" in found
    assert cli("gc", "--runs", "--url", url).code == 3
    assert cli("migrate", "downgrade", "--url", url, "--yes").code == 0
    lost = cli("migrate", "check", "--url", url)
    (command,) = COMMAND.findall(lost.out)
    assert typed(command, store.url).returncode == 0
    assert cli("migrate", "check", "--url", url).code == 0


def test_what_a_finding_says_to_type_names_the_store(cli, sql_store):
    done(sql_store, BILLING.key("1"))
    with sql_store.admin_engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {sql_store.table} SET expires_at = fence - 90000000000")
    (hint,) = [
        line["hint"] for line in cli("doctor", *at(sql_store), "--json").lines if "expiry" in line["what"]
    ]
    (command,) = COMMAND.findall(hint)
    assert "1 expired key deleted" in typed(command, sql_store.url).stdout
