"""What errors and `idempotent doctor` say to type about a missing table or right: typed, it mends that."""

import re
import secrets
import shlex
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from idempotent import migrations
from idempotent.checkers import SqlChecker, TransactionalSqlChecker
from idempotent.claims import ClaimRequest
from idempotent.errors import SchemaError, StoreError
from idempotent.migrations import create_dedup_table, upgrade
from idempotent.stores.sql.bridge import Bridge
from idempotent.stores.sql.connections import AwaitedConnections, Connections
from idempotent.stores.sql.cursor import query
from tests.cli.support import BILLING
from tests.migrations.support import all_tables, key_tables, operations, outboxes, scratch
from tests.support.privileges import PASSWORD, user_of_tables
from tests.support.stores import ASYNC_URLS, SQL

SERVERS = ("mysql", "postgres")
NEEDED = ("", "_failures")
OPTIONAL = (
    "_offsets",
    "_runs",
    "_run_claims",
    *(f"_outbox{each}" for each in ("", "_delayed", "_held", "_leases")),
)
RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")
DOING = {
    "SELECT": "SELECT * FROM {0}",
    "INSERT": "INSERT INTO {0} SELECT * FROM {0} WHERE 1 = 0",
    "UPDATE": "UPDATE {0} SET {1} = 0 WHERE 1 = 0",
    "DELETE": "DELETE FROM {0} WHERE 1 = 0",
}


class Place:
    """The tables of one application, and what a person types at them."""

    def __init__(self, cli, engine, table):
        self.cli = cli
        self.engine = engine
        self.table = table
        self.url = engine.url.render_as_string(hide_password=False)
        self.user = self.url

    def do(self, *statements):
        with self.engine.begin() as connection:
            for statement in statements:
                connection.execute(sa.text(statement))

    def doctor(self):
        """What is wrong, and what to do about it: of tables and rights."""
        answer = self.cli("doctor", "--url", self.user, "--table", self.table, "--json")
        return [f"{line['what']} -> {line['hint']}" for line in answer.lines if self.is_meant(line)]

    def is_meant(self, line):
        return line["level"] == "error" and "no relay is at work" not in line["what"]

    def failed(self, statement, url=None):
        """The error of a statement of the user's."""
        connections = Connections(sa.create_engine(url or self.user), self.table)
        try:
            with pytest.raises(StoreError) as caught:
                connections.run(query, statement)
        finally:
            connections.close()
            connections.engine.dispose()
        return str(caught.value)

    def type(self, said):
        """Type the one command of a text, as an administrator, or the one GRANT."""
        grants = dict.fromkeys(re.findall(r"(?:GRANT|ALTER) .*?;", said))
        commands = re.findall(r"idempotent migrate upgrade [^(`\n]*[^(`\n ]", said)
        assert grants or commands, said
        if grants:
            self.do(*grants)
            return
        _, *words = shlex.split(commands[0])
        answer = self.cli(*words)
        assert answer.code == 0, answer.err

    def type_in_own_history(self, said):
        (calls,) = set(re.findall(r"a new migration that calls (.*?) of idempotent\.migrations", said))
        with operations(self.engine):
            for name, table in re.findall(r"(\w+)\(table='(\w+)'\)", calls):
                getattr(migrations, name)(table=table)


@contextmanager
def place_of(cli, kind, request):
    url = f"sqlite:///{request.getfixturevalue('tmp_path')}/a.db"
    engine = sa.create_engine(url if kind == "sqlite" else request.getfixturevalue(f"{kind}_url"))
    engine.connect().close()  # makes SQLite's file
    with scratch(engine) as table:
        yield Place(cli, engine, table)


@pytest.fixture(params=SQL)
def place(cli, request, monkeypatch):
    with place_of(cli, request.param, request) as made:
        monkeypatch.setenv("VARIABLE", made.url)
        yield made


@contextmanager
def limited(place, tables):
    """The user of the application, who has no more rights than he needs."""
    with user_of_tables(place.engine, f"u{secrets.token_hex(6)}", tables) as place.user:
        yield sa.make_url(place.user).username


def account(place, name):
    return f"'{name}'@'%'" if place.engine.dialect.name == "mysql" else name


def errors(place, suffix):
    """Each text that tells a person that a table is not there."""
    yield lambda: "\n".join(place.doctor())
    yield lambda: place.failed(f"SELECT * FROM {place.table}{suffix}")
    words = ["--url", place.url, "--table", place.table]
    yield lambda: place.cli("migrate", "check", *words).out
    yield lambda: place.cli("migrate", "upgrade", *words, "--json").err


@pytest.mark.parametrize("suffix", [*NEEDED, *OPTIONAL])
@pytest.mark.sample(9)
def test_a_missing_table_is_created_by_what_is_said_to_type(place, suffix):
    upgrade(place.url, table=place.table)
    for said in errors(place, suffix):
        place.do(f"DROP TABLE {place.table}{suffix}")
        place.type(said())
        assert place.doctor() == []
        assert migrations.check(place.url, table=place.table) == []


def test_before_any_migration_each_error_says_what_creates_the_tables(place):
    for said in [*errors(place, "")][:3]:
        place.type(said())
        assert place.doctor() == []
        migrations.downgrade(place.url, table=place.table)


@pytest.mark.parametrize("suffix", [*NEEDED, *OPTIONAL])
@pytest.mark.sample(9)
def test_in_an_own_history_the_functions_that_are_named_create_a_missing_table(place, suffix):
    with operations(place.engine):
        create_dedup_table(table=place.table)
        if suffix in OPTIONAL[1:]:
            migrations.create_run_tables(table=place.table)
            migrations.create_outbox_tables(table=place.table)
    for said in [*errors(place, suffix)][:3]:
        place.do(f"DROP TABLE {place.table}{suffix}")
        text = said()
        assert ("outbox_tables" in text) == ("outbox" in suffix)
        place.type_in_own_history(text)
        assert place.doctor() == []
        assert migrations.check(place.url, table=place.table) == []


@pytest.mark.parametrize("place", SERVERS, indirect=True)
@pytest.mark.parametrize("suffix", [*NEEDED, *OPTIONAL])
@pytest.mark.sample(9)
def test_a_missing_right_is_given_by_the_grant_that_is_named(place, suffix):
    upgrade(place.url, table=place.table)
    tables = all_tables(place.table)
    table = f"{place.table}{suffix}"
    numbers = {"": "status", "_failures": "attempts", "_offsets": "next_offset", "_outbox_leases": "slot"}
    number = numbers.get(suffix, "epoch" if "run" in suffix else "bucket")
    with limited(place, tables) as name:
        user = account(place, name)
        if place.engine.dialect.name == "postgresql":
            for each in ("outbox", "outbox_delayed"):
                place.do(f"GRANT USAGE ON SEQUENCE {place.table}_{each}_id_seq TO {user}")
        assert place.doctor() == []
        for right in RIGHTS:
            statement = DOING[right].format(table, number)
            for said in (lambda: "\n".join(place.doctor()), lambda s=statement: place.failed(s)):
                place.do(f"REVOKE {right} ON {table} FROM {user}")
                text = said()
                assert right in text
                assert "idempotent doctor" not in text
                place.type(text)
                assert place.doctor() == []


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
@pytest.mark.parametrize("suffix", NEEDED)
def test_row_level_security_is_named_with_what_ends_it(place, suffix):
    upgrade(place.url, table=place.table)
    table = f"{place.table}{suffix}"
    row = {
        "": "VALUES ('x', 'x', 1, 'x', 1, 1, 'x', 'x', 1, 1)",
        "_failures": "VALUES ('x', 'x', 1, 'x', 1, 1)",
    }
    words = ["--url", place.url, "--table", place.table]
    with limited(place, [f"{place.table}{each}" for each in NEEDED]) as name:
        words[1] = place.user
        for said in (
            lambda: "\n".join(place.doctor()),
            lambda: place.failed(f"INSERT INTO {table} {row[suffix]}"),
        ):
            place.do(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
            text = said()
            assert "row level security" in text.lower().replace("-", " ")
            assert "GRANT" not in text
            assert f"hides rows of {table}" in place.cli("keys", "list", *words).err
            place.type(text)
            assert "row" not in place.cli("keys", "list", *words).err
        place.do(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        place.do(f"CREATE POLICY all_rows ON {table} TO {name} USING (true)")
        assert [line for line in place.doctor() if "row level" in line] == []  # it may show all


@pytest.mark.parametrize("place", SERVERS, indirect=True)
def test_a_user_without_rights_on_tables_that_it_does_not_use_is_healthy(place):
    upgrade(place.url, table=place.table)
    with limited(place, [f"{place.table}{suffix}" for suffix in NEEDED]):
        assert place.doctor() == []


@pytest.mark.parametrize("place", SERVERS, indirect=True)
@pytest.mark.parametrize("suffix", NEEDED)
def test_a_table_on_which_a_user_has_no_right_at_all_is_no_missing_one(place, suffix):
    upgrade(place.url, table=place.table)
    both = [f"{place.table}{each}" for each in NEEDED]
    with limited(place, both) as name:
        for said in (
            lambda: "\n".join(place.doctor()),
            lambda: place.failed(f"SELECT * FROM {place.table}{suffix}"),
        ):
            place.do(f"REVOKE {', '.join(RIGHTS)} ON {place.table}{suffix} FROM {account(place, name)}")
            text = said()
            assert "missing table" not in text
            place.type(text)
            assert place.doctor() == []


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_a_schema_that_may_not_be_used_is_no_missing_table(place):
    schema = f"{place.table}_s"
    place.do(f"CREATE SCHEMA {schema}")
    path = {"options": f"-csearch_path={schema}"}
    admin = place.engine.url.update_query_dict(path).render_as_string(hide_password=False)
    upgrade(admin, table=place.table)
    with limited(place, [f"{schema}.{place.table}{suffix}" for suffix in NEEDED]) as name:
        place.user = sa.make_url(place.user).update_query_dict(path).render_as_string(hide_password=False)
        place.do(f"GRANT USAGE ON SCHEMA {schema} TO {name}")
        assert place.doctor() == []
        for said in (lambda: "\n".join(place.doctor()), lambda: place.failed(f"SELECT * FROM {place.table}")):
            place.do(f"REVOKE USAGE ON SCHEMA {schema} FROM {name}")
            place.type(said())
            assert place.doctor() == []
    place.do(f"DROP SCHEMA {schema} CASCADE")


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_a_sequence_that_may_not_be_used_is_given_by_the_grant_that_is_named(place):
    upgrade(place.url, table=place.table)
    with limited(place, [*key_tables(place.table), *outboxes(place.table)]):
        assert len(place.doctor()) == 2
        place.type("\n".join(place.doctor()))
        assert place.doctor() == []


@pytest.mark.parametrize("place", ["mysql"], indirect=True)
def test_a_user_who_may_not_enter_the_database_is_told_the_grant(place):
    upgrade(place.url, table=place.table)
    with limited(place, []):
        place.type("\n".join(place.doctor()))
        assert place.doctor() == []


@pytest.mark.parametrize("place", SERVERS, indirect=True)
def test_a_user_who_may_not_migrate_is_told_the_grant(place):
    with limited(place, []) as name:
        if place.engine.dialect.name == "mysql":  # else the server does not let the user in
            place.do(f"GRANT SELECT ON *.* TO {account(place, name)}")
        else:
            place.do("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        words = ("migrate", "upgrade", "--url", place.user, "--table", place.table)
        refused = place.cli(*words, "--json")
        assert refused.code == 4
        place.type(refused.err.encode().decode("unicode_escape"))
        assert place.cli(*words).code == 0
        place.user, user = place.url, place.user
        migrations.downgrade(user, table=place.table)


@pytest.mark.parametrize("place", SERVERS, indirect=True)
@pytest.mark.parametrize("checker", [SqlChecker, TransactionalSqlChecker])
def test_what_a_consumer_is_told_mends_it(place, checker):
    upgrade(place.url, table=place.table)
    with limited(place, [f"{place.table}{suffix}" for suffix in NEEDED]) as name:
        made = checker(place.user, table=place.table)
        try:
            place.do(f"REVOKE INSERT ON {place.table} FROM {account(place, name)}")
            with pytest.raises(StoreError, match="lacks a right") as denied:
                made.protocol.claim(ClaimRequest(BILLING.key("1")))
            place.type(str(denied.value))
            claim = made.protocol.claim(ClaimRequest(BILLING.key("1"))).claim
            made.protocol.abandon(claim)
        finally:
            made.close()
        place.do(f"DROP TABLE {place.table}")
        made = checker(place.url, table=place.table)
        try:
            with pytest.raises(SchemaError) as missing:
                made.protocol.claim(ClaimRequest(BILLING.key("2")))
            place.type(str(missing.value))
            made.protocol.abandon(made.protocol.claim(ClaimRequest(BILLING.key("2"))).claim)
        finally:
            made.close()


@pytest.mark.parametrize("place", ["mysql"], indirect=True)
def test_an_account_of_one_host_is_named_as_it_is(place):
    upgrade(place.url, table=place.table)
    name = f"u{secrets.token_hex(6)}"
    place.do(
        f"CREATE USER '{name}'@'127.0.0.0/255.0.0.0' IDENTIFIED BY '{PASSWORD}'",
        *(
            f"GRANT SELECT, UPDATE, DELETE ON {place.table}{suffix} TO '{name}'@'127.0.0.0/255.0.0.0'"
            for suffix in NEEDED
        ),
    )
    place.user = place.engine.url.set(username=name, password=PASSWORD).render_as_string(hide_password=False)
    try:
        place.type(place.failed(DOING["INSERT"].format(f"{place.table}_failures")))
        place.type("\n".join(place.doctor()))
        assert place.doctor() == []
    finally:
        place.do(f"DROP USER '{name}'@'127.0.0.0/255.0.0.0'")


@pytest.mark.parametrize("place", SERVERS, indirect=True)
def test_an_asyncio_driver_is_told_the_same(place):
    upgrade(place.url, table=place.table)
    kind = "mysql" if place.engine.dialect.name == "mysql" else "postgres"
    with limited(place, [place.table]):
        from sqlalchemy.ext.asyncio import create_async_engine

        engine = create_async_engine(ASYNC_URLS[kind](sa.make_url(place.user)))
        bridge = Bridge()
        connections = AwaitedConnections(bridge, engine.sync_engine, place.table)
        with pytest.raises(StoreError) as denied:
            connections.run(query, f"SELECT * FROM {place.table}_failures")
        place.type(str(denied.value))
        assert connections.run(query, f"SELECT * FROM {place.table}_failures") in ([], ())
        connections.close()
        bridge.close()
