"""Bad input gets a clear error: what is wrong, where, and what to do; never a traceback, never a password."""

import json
import socket
import subprocess
import sys
from itertools import product

import pytest
from sqlalchemy import create_engine, make_url, text

from tests.cli.support import BILLING, at, done
from tests.cli.test_replay import command, shop, write

__all__ = ["shop"]

PASSWORD = "geh+eim"
UNREACHABLE = [
    f"mysql+pymysql://me:{PASSWORD}@127.0.0.1:%d/db",
    f"postgresql+psycopg://me:{PASSWORD}@127.0.0.1:%d/db",
    f"redis://me:{PASSWORD}@127.0.0.1:%d/0",
]


def words_of(text):
    """Without the panel's borders and line ends."""
    return " ".join(text.replace("│", " ").split())


@pytest.fixture
def closed_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize(
    ("words", "url"),
    [
        *product([("keys", "list"), ("keys", "stats"), ("doctor",)], UNREACHABLE),
        # Redis deletes expired keys automatically, so gc does not query it.
        *product([("gc",), ("migrate", "check")], UNREACHABLE[:2]),
    ],
)
def test_an_unreachable_store_is_named_with_what_to_do(cli, url, words, closed_port):
    answer = cli(*words, "--url", url % closed_port)
    assert answer.code == 4
    said = words_of(answer.out + answer.err)
    assert f"127.0.0.1:{closed_port}" in said
    assert "Check that the server runs" in said
    assert "***" in said
    assert PASSWORD not in said
    assert "Traceback" not in said


@pytest.mark.parametrize("fixture", ["mysql_url", "postgres_url"])
def test_a_wrong_password_is_not_repeated(cli, request, fixture):
    url = make_url(request.getfixturevalue(fixture)).set(password=PASSWORD)
    answer = cli("migrate", "upgrade", "--url", url.render_as_string(hide_password=False))
    if answer.code == 0:
        pytest.skip("this server trusts everybody")
    assert answer.code == 4
    said = words_of(answer.err)
    assert str(url.port) in said
    assert "the user and the password" in said
    assert PASSWORD not in said
    assert "geh%2Beim" not in said


def test_a_missing_table_says_what_to_type(cli, sql_store):
    answer = cli("keys", "list", "--url", sql_store.url, "--table", "not_there")
    assert answer.code == 4
    assert "Table missing or different" in answer.err
    # On one line, without a border: something to copy.
    (line,) = [line for line in answer.err.splitlines() if "idempotent migrate upgrade" in line]
    assert line.strip().startswith("Type: idempotent migrate upgrade --url ")
    assert line.endswith("--table not_there --create-missing")
    assert "***" not in line


@pytest.mark.parametrize(
    ("words", "missing", "function"),
    [
        (("outbox", "list"), "{}_outbox", "create_outbox_tables"),
        (("keys", "list"), "{}", "create_dedup_table"),
    ],
)
def test_a_missing_table_is_named_with_what_makes_it(cli, sql_store, words, missing, function):
    answer = cli(*words, "--url", sql_store.url, "--table", "not_there")
    said = words_of(answer.err)
    assert f"the table {missing.format('not_there')} in " in said
    assert (
        f"in an Alembic history of your own, a new migration that calls {function}(table='not_there') of"
        in said
    )


def test_a_command_to_type_has_no_masked_password(cli, mysql_url, monkeypatch):
    words = ("keys", "list", "--table", "not_there")
    answer = cli(*words, "--url", mysql_url)
    assert "idempotent migrate upgrade --url env:VARIABLE --table not_there" in words_of(answer.err)
    monkeypatch.setenv("ORDERS_DB", mysql_url)
    monkeypatch.setenv("IDEMPOTENT_URL", mysql_url)
    for given, said in ((["--url", "env:ORDERS_DB"], "env:ORDERS_DB"), ([], "env:IDEMPOTENT_URL")):
        answer = cli(*words, *given)
        assert f"idempotent migrate upgrade --url {said} --table not_there" in words_of(answer.err)
    monkeypatch.delenv("IDEMPOTENT_URL")
    assert "--url env:VARIABLE" in words_of(cli(*words, "--url", mysql_url).err)


def test_a_changed_table_says_where_to_look(cli, sql_store):
    done(sql_store, BILLING.key("1"))
    engine = create_engine(sql_store.url)
    with engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {sql_store.table} RENAME COLUMN fence TO fence_before"))
    try:
        answer = cli("keys", "list", *at(sql_store))
        assert answer.code == 4
        assert "migrate check" in answer.err
        differences = cli("migrate", "check", *at(sql_store), "--json")
        assert differences.code == 1
        assert {"fence", "fence_before"} <= {drift["name"] for drift in differences.line["differences"]}
    finally:
        engine.dispose()


@pytest.mark.parametrize("name", ["x; DROP TABLE y", "a.b", "1st", "x" * 41, "naïve", ""])
@pytest.mark.parametrize("words", [("keys", "list"), ("migrate", "upgrade"), ("doctor",), ("gc",)])
def test_an_invalid_table_name_is_refused_before_anything_else(cli, sqlite_store, words, name):
    answer = cli(*words, "--url", sqlite_store.url, "--table", name)
    assert answer.code == 3
    assert "invalid table name" in words_of(answer.err)


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "oracle://host/db",
        "sqlite://",
        "mysql+pymysql//host",
        "memory://",
        f"nope://me:{PASSWORD}@host/db",
        f"redis://me:{PASSWORD}@host:port/0",
        f"postgresql://me:{PASSWORD}@host:port/db",
    ],
)
def test_a_url_of_no_store_is_a_matter_of_configuration(cli, url):
    answer = cli("keys", "list", "--url", url)
    assert answer.code == 3
    assert PASSWORD not in answer.err


def test_a_file_that_is_not_there_is_not_made_by_looking(cli, tmp_path):
    for words in (("keys", "list"), ("gc",), ("doctor",), ("migrate", "check"), ("migrate", "current")):
        answer = cli(*words, "--url", f"sqlite:///{tmp_path}/typo.db")
        assert answer.code == 4
        assert "does not exist" in answer.out + answer.err
    assert not (tmp_path / "typo.db").exists()


def test_options_of_the_other_kind_of_store_are_refused(cli, store):
    wrong = ["--table", "x"] if store.kind == "redis" else ["--prefix", "x:"]
    assert cli("keys", "list", "--url", store.url, *wrong).code == 3


def test_an_unknown_checker_name_lists_the_known(cli, shop):
    file = write(shop / "orders.jsonl", ("1", {}))
    answer = cli("replay", file, "shop_consumers:on_paid", "--checker", "bd=sqlite:///app.db")
    assert answer.code == 3
    said = words_of(answer.err)
    assert "no checker is named 'db'; known: bd" in said


def test_a_checker_without_admin_says_so(cli, monkeypatch, sqlite_store):
    from idempotent.checkers import SqlChecker

    monkeypatch.delattr(SqlChecker, "admin")
    answer = cli("keys", "list", *at(sqlite_store))
    assert answer.code == 3
    assert "admin()" in answer.err


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("no_such_module:on_paid", "module no_such_module was not found"),
        ("shop_consumers", "which consumer?"),
        ("shop_consumers:on_piad", "known: on_call, on_mail, on_paid"),
        ("shop_consumers:undecorated", "is not a consumer"),
        ("shop_consumers.py:on_paid", "write the module: shop_consumers:on_paid"),
        ("broken:on_paid", "importing broken failed: ZeroDivisionError"),
        ("needy:on_paid", "importing needy failed: No module named 'missing_library'"),
    ],
)
def test_a_consumer_that_cannot_be_found_is_explained(cli, shop, target, said):
    (shop / "broken.py").write_text("1 / 0\n")
    (shop / "needy.py").write_text("import missing_library\n")
    answer = cli("replay", write(shop / "orders.jsonl", ("1", {})), target)
    assert answer.code == 3
    assert said in words_of(answer.err)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("shop_consumers:mial", "known: calls, letters, mail"),
        ("shop_consumers:undecorated", "is not a Registry"),
        ("empty", "has no consumers"),
    ],
)
def test_a_registry_that_cannot_be_found_is_explained(cli, shop, target, said):
    (shop / "empty.py").write_text("from idempotent import Registry\nmine = Registry()\n")
    answer = cli("run", target, "--broker", "file://-")
    assert answer.code == 3
    assert said in words_of(answer.err)


@pytest.mark.parametrize("word", ["sqlite:///app.db", "db", "=sqlite:///app.db", "db=app.db"])
def test_a_checker_is_name_equals_url(cli, shop, word):
    answer = cli("replay", write(shop / "o.jsonl", ("1", {})), "shop_consumers:on_paid", "--checker", word)
    assert answer.code == 2
    assert "--checker NAME=URL" in words_of(answer.err)


def test_errors_are_json_for_machines(cli, closed_port):
    answer = cli("keys", "list", "--json", "--url", UNREACHABLE[0] % closed_port)
    assert answer.code == 4
    assert answer.out == ""
    assert json.loads(answer.err)["error"] == "StoreUnavailableError"
    assert PASSWORD not in answer.err


def test_debug_shows_the_traceback_and_still_no_password(cli, closed_port):
    url = UNREACHABLE[0] % closed_port
    assert "Traceback" not in cli("keys", "list", "--url", url).err
    answer = cli("--debug", "keys", "list", "--url", url)
    assert answer.code == 4
    assert "Traceback" in answer.err
    assert PASSWORD not in answer.err


def test_a_url_is_needed_and_may_come_from_the_environment(cli, sqlite_store, monkeypatch):
    answer = cli("keys", "list")
    assert answer.code == 2
    assert "IDEMPOTENT_URL" in cli("keys", "list", "--help").out
    monkeypatch.setenv("IDEMPOTENT_URL", sqlite_store.url)
    assert cli("keys", "list", "--table", sqlite_store.table).code == 0


@pytest.mark.parametrize("library", ["typer", "rich"])
def test_without_its_extra_the_command_says_what_to_install(library):
    code = f"import sys; sys.modules[{library!r}] = None; from idempotent.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 3
    assert f"{library} is not installed" in done.stderr
    assert 'pip install "idempotent-consumer[cli]"' in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("library", "url", "extra"),
    [
        ("pymysql", "mysql+pymysql://h/db", "mysql"),
        ("psycopg", "postgresql+psycopg://h/db", "postgres"),
        ("redis", "redis://h", "redis"),
    ],
)
def test_without_its_driver_a_store_says_what_to_install(library, url, extra):
    code = (
        f"import sys; sys.modules[{library!r}] = None; from idempotent.cli.app import main;"
        f" sys.argv = ['idempotent', 'keys', 'list', '--url', {url!r}]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 3
    assert f'pip install "idempotent-consumer[{extra}]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_the_module_is_the_command(project):
    with command("--version", stdout=subprocess.PIPE, cwd=project) as child:
        out, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    assert out.startswith(b"idempotent-consumer ")
