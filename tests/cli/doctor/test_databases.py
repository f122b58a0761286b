"""Settings of databases, clusters and proxies that break a promise are found, and a fresh database is healthy."""

import secrets
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from idempotent.admin import Level
from idempotent.checkers.sql.clusters import Look, galera_findings, server_findings
from tests.checkers.redis.test_health import SAFE
from tests.cli.doctor.balancer import Balancer
from tests.cli.support import at
from tests.support.services.process import free_port
from tests.support.stores import open_store

GALERA = Path("/usr/lib/galera/libgalera_smm.so")


def levels(answer, part):
    return [line["level"] for line in answer.lines if part in line["what"]]


@contextmanager
def opened(url):
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            yield lambda statement: connection.execute(text(statement))
    finally:
        engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "server"),
    [
        ("", "redis"),
        *((kind, server) for kind in ("transactional+", "") for server in ("postgres", "mariadb", "sqlite")),
    ],
)
def test_a_fresh_store_of_a_default_installation_is_healthy(cli, request, tmp_path, server, kind):
    # What the tests' own servers have switched off for speed is on by default; Redis as docs/databases.md wants it.
    as_shipped = {
        "postgres": [word for name in ("fsync", "full_page_writes") for word in ("-c", f"{name}=on")],
        "mariadb": ["--innodb-flush-log-at-trx-commit=1"],
        "redis": SAFE,
    }
    if server == "sqlite":
        url = f"sqlite:///{tmp_path}/fresh.db"
    else:
        url = request.getfixturevalue(f"private_{server}")(*as_shipped[server]).url
    if server != "redis":
        assert cli("migrate", "upgrade", "--url", url).code == 0
    answer = cli("doctor", "--url", f"{kind}{url}")
    assert (answer.code, answer.out.splitlines()[-1]) == (0, "Healthy."), answer.out


def test_tables_without_transactions_matter_to_a_transactional_checker(cli, request):
    for store in open_store("mysql", request):
        words = ["--table", store.table, "--json"]
        named = f"a{secrets.token_hex(4)}"
        try:
            with opened(store.url) as run:
                for number in range(6):
                    run(f"CREATE TABLE {named}_{number} (a INT) ENGINE=MyISAM")
            answer = cli("doctor", "--url", f"transactional+{store.url}", *words)
            assert levels(answer, "tables without transactions") == ["warning"]
            (found,) = [line for line in answer.lines if "tables without transactions" in line["what"]]
            assert found["what"].endswith(f"{named}_4 (MyISAM) and 1 more")
            assert not levels(cli("doctor", "--url", store.url, *words), "tables without transactions")
        finally:
            with opened(store.url) as run:
                for number in range(6):
                    run(f"DROP TABLE IF EXISTS {named}_{number}")
        healed = cli("doctor", "--url", f"transactional+{store.url}", *words)
        assert not levels(healed, "tables without transactions")


def test_a_character_set_that_lacks_characters_is_advice(cli, request):
    for store in open_store("mysql", request):
        name = make_url(store.url).database
        try:
            with opened(store.url) as run:
                run(f"ALTER DATABASE {name} CHARACTER SET latin1")
            assert levels(cli("doctor", *at(store), "--json"), "character set latin1") == ["advice"]
        finally:
            with opened(store.url) as run:
                run(f"ALTER DATABASE {name} CHARACTER SET utf8mb4")
        assert not levels(cli("doctor", *at(store), "--json"), "character set")


def test_an_encoding_that_lacks_characters_is_advice(cli, postgres_url):
    name = f"d_{secrets.token_hex(4)}"
    url = make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
    with opened(postgres_url) as run:
        run(f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
        try:
            assert cli("migrate", "upgrade", "--url", url).code == 0
            assert levels(cli("doctor", "--url", url, "--json"), "encoding LATIN1") == ["advice"]
        finally:
            run(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.slow
def test_a_server_that_only_reads_is_found(cli, private_mariadb):
    server = private_mariadb("--innodb-flush-log-at-trx-commit=1")
    assert cli("migrate", "upgrade", "--url", server.url).code == 0
    words = ("doctor", "--url", server.url, "--json")
    assert cli(*words).code == 0
    with opened(server.url) as run:
        run("SET GLOBAL read_only = 1")
    assert levels(cli(*words), "led to a server that only reads: ") == ["error"]


@pytest.mark.slow
def test_several_servers_behind_one_url_are_found(cli, private_postgres):
    servers = [private_postgres("-c", "fsync=on", "-c", "full_page_writes=on") for _ in range(2)]
    for each in servers:
        assert cli("migrate", "upgrade", "--url", each.url).code == 0
        assert cli("doctor", "--url", each.url).code == 0
    with closing(Balancer(*(each.port for each in servers))) as balancer:
        url = make_url(servers[0].url).set(port=balancer.port).render_as_string(hide_password=False)
        answer = cli("doctor", "--url", url, "--json")
    assert (answer.code, levels(answer, "led to several servers that write")) == (1, ["error"])


@pytest.mark.slow
@pytest.mark.skipif(not GALERA.exists(), reason="Galera's library is not installed")
def test_galera_is_a_warning_and_an_error_where_connections_are_led_to_several_nodes(cli, private_mariadb):
    # Each a cluster of its own: who answers tells them no better from nodes of one.
    servers = [
        private_mariadb(
            "--innodb-flush-log-at-trx-commit=1",
            *("--wsrep-on=ON", f"--wsrep-provider={GALERA}", "--wsrep-cluster-address=gcomm://"),
            *("--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", "--wsrep-node-address=127.0.0.1"),
            f"--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:{free_port()};pc.recovery=false",
        )
        for _ in range(2)
    ]
    for each in servers:
        assert cli("migrate", "upgrade", "--url", each.url).code == 0
    answer = cli("doctor", "--url", servers[0].url, "--json")
    assert (answer.code, levels(answer, "Galera, nodes: 1")) == (1, ["warning"]), answer.out
    with closing(Balancer(*(each.port for each in servers))) as balancer:
        url = make_url(servers[0].url).set(port=balancer.port).render_as_string(hide_password=False)
        answer = cli("doctor", "--url", url, "--json")
    assert levels(answer, "Galera with several writers") == ["error"], answer.out


def look(server, *, only_reads=False, in_transaction=True):
    return Look(server, server, only_reads, in_transaction)


CLUSTER = {"wsrep_on": "on", "wsrep_provider": "/usr/lib/galera/libgalera_smm.so", "wsrep_cluster_size": "3"}


@pytest.mark.parametrize(
    ("settings", "writers", "level"),
    [
        (CLUSTER, ("a",), [Level.WARNING]),
        (CLUSTER, ("a", "b"), [Level.ERROR]),
        (CLUSTER | {"wsrep_on": "off"}, ("a",), []),
        (CLUSTER | {"wsrep_provider": "none"}, ("a",), []),
        ({}, ("a", "b"), []),
    ],
)
def test_galera_is_judged_by_its_settings_and_by_who_answers(settings, writers, level):
    looks = [look(each) for each in writers]
    assert [each.level for each in galera_findings(settings, looks)] == level


def test_a_proxy_that_splits_reads_is_a_warning_and_one_that_splits_transactions_an_error():
    reads = look("b", only_reads=True, in_transaction=False)
    (split,) = server_findings([reads, look("a")], has_galera=False)
    assert (split.level, "other servers: b" in split.what) == (Level.WARNING, True)
    (replica,) = server_findings([look("a"), look("b", only_reads=True)], has_galera=False)
    assert (replica.level, "only reads: b" in replica.what) == (Level.ERROR, True)
    assert not [*server_findings([look("a", in_transaction=False), look("a")], has_galera=False)]
    assert not [*server_findings([look("a"), look("b")], has_galera=True)]
