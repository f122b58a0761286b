"""A store that is gone, slow, replaced or forgetful is an error, and never a verdict."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys

import pytest
from sqlalchemy import create_engine

from idempotent.adapters.spark.ledger import OnConflict, RunState, StoreConfig, open_ledger
from idempotent.adapters.spark.ledger.claims import Owner
from idempotent.adapters.spark.ledger.handler_claims import HandlerClaims
from idempotent.adapters.spark.ledger.run_claims import RowVerdict, RunClaims
from idempotent.errors import (
    ClaimsExpiredError,
    SchemaError,
    StoreBusyError,
    StoreError,
    StoreReplacedError,
    StoreUnavailableError,
)
from idempotent.migrations import create_dedup_table, upgrade
from tests.adapters.spark.ledger.contract.base import keys
from tests.adapters.spark.support.migrated import sqlite_url
from tests.migrations.support import operations

LEASE_S = 60.0


class TestReplacedFile:
    @pytest.fixture
    def path(self, tmp_path):
        return tmp_path / "ledger.db"

    @pytest.fixture
    def ledger(self, path):
        with open_ledger(StoreConfig(sqlite_url(path))) as ledger:
            yield ledger

    def test_an_empty_ledger_in_its_place_is_an_error_for_every_task(self, ledger, path, tmp_path):
        ref, hashes = ledger.begin("orders", "r1", lease_s=LEASE_S).ref, keys(3)
        claims = RunClaims(ledger, ref)
        assert claims.decide(hashes) == [RowVerdict.NEW] * 3
        sqlite_url(tmp_path / "other.db")
        (tmp_path / "other.db").rename(path)
        for call in (
            lambda: claims.decide(hashes),
            lambda: RunClaims(ledger, ref).decide(keys(1)),
            lambda: HandlerClaims(ledger, ref, LEASE_S).acquire(keys(1)),
            lambda: ledger.prepare(ref),
        ):
            with pytest.raises(StoreReplacedError, match=r"ledger\.db"):
                call()

    def test_a_file_that_is_gone_is_an_error_and_is_not_created_again(self, ledger, path):
        ref = ledger.begin("orders", "r1", lease_s=LEASE_S).ref
        path.unlink()
        for _ in range(2):
            with pytest.raises(StoreReplacedError, match="gone"):
                RunClaims(ledger, ref).decide(keys(1))
        assert not path.exists()

    def test_a_copy_that_knows_the_run_goes_on_with_it(self, ledger, path, tmp_path):
        ref, hashes = ledger.begin("orders", "r1", lease_s=LEASE_S).ref, keys(3)
        ledger.claim(ref, hashes[:1])
        shutil.copy(path, tmp_path / "copy.db")
        (tmp_path / "copy.db").rename(path)
        assert ledger.claim(ref, hashes[:2]) == [Owner(ref.token, 1)] * 2
        with open_ledger(StoreConfig(f"sqlite:///{path}")) as fresh:
            assert fresh.claim(ref, hashes, insert=False) == [Owner(ref.token, 1)] * 2 + [None]

    def test_another_file_without_tables_is_an_error(self, ledger, path, tmp_path):
        ref = ledger.begin("orders", "r1", lease_s=LEASE_S).ref
        (tmp_path / "empty").touch()
        (tmp_path / "empty").rename(path)
        with pytest.raises(SchemaError, match="migrate upgrade"):
            RunClaims(ledger, ref).decide(keys(1))


class TestForgetfulRedis:
    @pytest.fixture
    def server(self, private_redis):
        return private_redis("--appendonly", "yes", "--appendfsync", "always")

    def ledger(self, server):
        return open_ledger(StoreConfig(server.url))

    def client(self, server):
        import redis

        return redis.Redis.from_url(server.url)

    def test_a_flushed_server_does_not_know_the_run(self, server):
        with self.ledger(server) as ledger, self.client(server) as client:
            ref, hashes = ledger.begin("orders", "r1", lease_s=LEASE_S).ref, keys(3)
            claims = RunClaims(ledger, ref)
            claims.decide(hashes)
            client.flushall()
            for call in (
                lambda: claims.decide(hashes),
                lambda: HandlerClaims(ledger, ref, LEASE_S).acquire(hashes),
                lambda: ledger.prepare(ref),
                lambda: ledger.commit(ref),
            ):
                with pytest.raises(StoreReplacedError):
                    call()
            assert client.dbsize() == 0

    def test_evicted_claims_keep_the_run_from_being_prepared_and_committed(self, server):
        with self.ledger(server) as ledger, self.client(server) as client:
            refs = [ledger.begin("orders", name, lease_s=LEASE_S).ref for name in ("open", "prepared")]
            hashes = keys(3000)
            RunClaims(ledger, refs[0]).decide(hashes)
            ledger.prepare(refs[1])
            client.config_set("maxmemory-policy", "volatile-random")
            client.config_set("maxmemory", client.info("memory")["used_memory"] - 200_000)
            client.set("x", b"x")
            assert client.info("stats")["evicted_keys"] > 0
            client.config_set("maxmemory", 0)
            with pytest.raises(ClaimsExpiredError, match="evicted"):
                ledger.prepare(refs[0])
            with pytest.raises(ClaimsExpiredError, match="evicted"):
                ledger.commit(refs[1])
            prepared = ledger.begin("orders", "prepared", lease_s=LEASE_S, takeover=True)
            assert prepared.state is RunState.PREPARED
            with pytest.raises(ClaimsExpiredError, match="evicted"):
                ledger.commit(prepared.ref)
            # Begun again, it goes over all of its keys once more.
            ref = ledger.begin("orders", "open", lease_s=LEASE_S, takeover=True).ref
            assert set(RunClaims(ledger, ref).decide(hashes)) == {RowVerdict.NEW}
            ledger.prepare(ref, rows=3000)
            ledger.commit(ref)
            ledger.commit(prepared.ref, accept_loss=True)
            assert {row.state for row in ledger.rows([ref.token for ref in refs]).values()} == {
                RunState.COMMITTED
            }

    def test_a_restarted_server_may_have_forgotten_claims(self, server):
        with self.ledger(server) as ledger:
            ref = ledger.begin("orders", "r1", lease_s=LEASE_S).ref
            ledger.claim(ref, keys(2))
            server.kill()
            with pytest.raises(StoreUnavailableError):
                RunClaims(ledger, ref).decide(keys(1))
            server.start()
            assert ledger.row(ref.token).state is RunState.OPEN
            with pytest.raises(ClaimsExpiredError, match="restarted"):
                ledger.prepare(ref)
            ledger.prepare(ledger.begin("orders", "r1", lease_s=LEASE_S, takeover=True).ref)

    def test_claims_are_forgotten_after_the_retention_and_ended_runs_later(self, server):
        retention_s = 1000.0
        config = StoreConfig(server.url, retention_s=retention_s)
        with open_ledger(config) as ledger, self.client(server) as client:
            ref = ledger.begin("orders", "r1", lease_s=LEASE_S).ref
            ledger.claim(ref, keys(5))
            HandlerClaims(ledger, ref, LEASE_S).acquire(keys(5))
            ledger.prepare(ref)
            ledger.commit(ref)
            claims = client.keys("*claim:*")
            runs = set(client.scan_iter()) - set(claims)
            assert (len(claims), len(runs)) == (10, 2)
            assert all(0 < client.pttl(name) <= retention_s * 1000 for name in claims)
            assert all(client.pttl(name) > retention_s * 1000 for name in runs)


@pytest.mark.parametrize("server", ["private_mariadb", "private_postgres", "private_redis"])
def test_a_store_that_is_down_is_an_error_and_is_used_again_when_it_is_back(server, request):
    private = request.getfixturevalue(server)(
        *(("--appendonly", "yes", "--appendfsync", "always") if server == "private_redis" else ())
    )
    config = StoreConfig(private.url)
    if not config.is_redis:
        upgrade(config.url)
    with open_ledger(config) as ledger:
        ref, hashes = ledger.begin("orders", "r1", lease_s=LEASE_S).ref, keys(2)
        RunClaims(ledger, ref).decide(hashes)
        private.kill()
        for call in (
            lambda: RunClaims(ledger, ref).decide(hashes),
            lambda: ledger.row(ref.token),
            lambda: ledger.prepare(ref),
            lambda: ledger.begin("orders", "r2", lease_s=LEASE_S),
            lambda: HandlerClaims(ledger, ref, LEASE_S).finish([(hashes[0], None)]),
        ):
            with pytest.raises(StoreError):
                call()
        private.start()
        assert RunClaims(ledger, ref).decide(hashes) == [RowVerdict.NEW] * 2


def test_an_owner_that_the_store_does_not_know_is_neither_new_nor_duplicate(tmp_path):
    path = tmp_path / "ledger.db"
    with open_ledger(StoreConfig(sqlite_url(path))) as ledger:
        lost, ref = (ledger.begin("orders", name, lease_s=LEASE_S).ref for name in ("lost", "r1"))
        hashes = keys(2)
        ledger.claim(lost, hashes[:1])
        other = sqlite3.connect(path)
        other.execute("DELETE FROM deduplicate_tbl_runs WHERE token = ?", (lost.token,))
        other.commit()
        other.close()
        for on_conflict in OnConflict:
            with pytest.raises(StoreReplacedError, match="owns a key"):
                RunClaims(ledger, ref, on_conflict=on_conflict).decide(hashes)


def test_a_locked_sqlite_file_is_busy(tmp_path):
    url = sqlite_url(tmp_path / "ledger.db")
    with open_ledger(StoreConfig(f"{url}?timeout=0.1")) as ledger:
        ref = ledger.begin("orders", "r1", lease_s=LEASE_S).ref
        other = sqlite3.connect(tmp_path / "ledger.db")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusyError):
            ledger.claim(ref, keys(1))
        other.close()
        assert ledger.claim(ref, keys(1)) == [Owner(ref.token, 1)]


def test_a_store_without_the_tables_of_runs_says_what_to_type(tmp_path):
    url = f"sqlite:///{tmp_path}/keys.db"
    engine = create_engine(url)
    with operations(engine):
        create_dedup_table()
    engine.dispose()
    with (
        open_ledger(StoreConfig(url)) as ledger,
        pytest.raises(SchemaError, match="idempotent migrate upgrade"),
    ):
        ledger.begin("orders", "r1", lease_s=LEASE_S)


def test_a_ledger_survives_a_fork(tmp_path):
    with open_ledger(StoreConfig(sqlite_url(tmp_path / "ledger.db"))) as ledger:
        ref, hashes = ledger.begin("orders", "r1", lease_s=LEASE_S).ref, keys(2)
        ledger.claim(ref, hashes[:1])
        child = os.fork()
        if child == 0:
            owners = ledger.claim(ref, hashes)
            os._exit(0 if owners == [Owner(ref.token, 1)] * 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert ledger.claim(ref, hashes, insert=False) == [Owner(ref.token, 1)] * 2


def test_importing_the_ledger_imports_no_spark_and_no_driver(tmp_path):
    program = "import sys, idempotent.adapters.spark.ledger; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert not {"pyspark", "redis", "pymysql", "psycopg", "alembic"} & set(done.stdout.split())
