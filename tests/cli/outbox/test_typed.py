"""The commands that messages say to type: typed into a shell as they are printed, they do what they promise."""

import os
import re
import subprocess
import sys

import pytest

from idempotent.checkers import RedisChecker
from idempotent.errors import ConfigurationError
from tests.cli.support import BILLING, at, dead, fill

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
    r"idempotent (?:keys|migrate|offsets|outbox|doctor)\b[^`\n(│]*?(?=`|\n|\s*│| \(|\.(?:\s|$)|$)",
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
