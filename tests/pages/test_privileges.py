"""docs/reference/privileges.md: what its users may do with the rights that are pasted from there, on real servers."""

import re
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import redis
import sqlalchemy as sa

from idempotent import Message, Registry
from idempotent.admin import KeyFilter
from idempotent.checkers import OffsetChecker, RedisChecker, SqlChecker, TransactionalSqlChecker
from idempotent.checkers.redis.findings import redis_findings
from idempotent.keys import KeySpace
from idempotent.migrations import check, current, upgrade
from idempotent.outbox import Outbox

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "privileges.md").read_text()
SERVERS = {"PostgreSQL": "private_postgres", "MySQL and MariaDB": "private_mariadb"}


def blocks(title, language):
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.+?)^```$", section, re.MULTILINE | re.DOTALL)


def run(engine, block):
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        for line in block.splitlines():
            if not line.startswith("--"):
                connection.execute(sa.text(line))


class Database:
    """The database of the page, made as it says, and its users."""

    def __init__(self, title, url, stack):
        self._url, self._stack = sa.make_url(url), stack
        run(self._engine(self._url), "CREATE DATABASE shop")
        self.admin = self._engine(self._url.set(database="shop"))
        first, then, sending = blocks(title, "sql")
        run(self.admin, first)
        migrating = self.user("shop_migrate", "change-me-1")
        upgrade(migrating)
        owner = migrating if title == "PostgreSQL" else self.admin
        run(owner, then)
        run(owner, sending)
        self.shop = self.user("shop", "change-me-2")

    def user(self, name, password):
        return self._engine(self._url.set(database="shop", username=name, password=password))

    def _engine(self, url):
        engine = sa.create_engine(url)
        self._stack.callback(engine.dispose)
        return engine


@pytest.fixture(params=SERVERS)
def database(request):
    with ExitStack() as stack:
        yield Database(request.param, request.getfixturevalue(SERVERS[request.param])().url, stack)


def outcomes(checker):
    """Of a message, its copy, and one that fails at first."""
    failures = [ValueError()]

    @Registry().consumer("orders.paid", group="billing", checker=checker)
    def on_paid(message):
        if message.id == "2" and failures:
            raise failures.pop()

    return [on_paid.process(Message("orders.paid", id=name)).outcome.value for name in ("1", "1", "2", "2")]


EXPECTED = ["processed", "duplicate", "failed", "processed"]


@pytest.mark.parametrize("checker_class", [SqlChecker, TransactionalSqlChecker])
def test_the_user_who_runs_has_what_a_checker_needs(database, checker_class):
    with closing(checker_class(database.shop)) as checker:
        assert outcomes(checker) == EXPECTED
        assert checker.lead("metrics").take()
        assert checker.admin().measure().expired == 0
        assert len(list(checker.admin().list(KeyFilter()))) == 2
        checker.garbage_collect()


def test_the_user_who_runs_has_what_offsets_runs_and_an_outbox_need(database):
    checker = OffsetChecker(database.shop)
    partition = KeySpace("orders.paid", "billing").key("orders.paid/0")
    with closing(checker):
        assert checker.begin({partition: 7}) == {partition: 7}
        checker.ping()
        checker.garbage_collect_alone()
    with database.shop.begin() as connection:
        for suffix in ("_runs", "_run_claims", "_outbox_held", "_outbox_leases"):
            for doing in ("SELECT 1 FROM {0}", "DELETE FROM {0}", "INSERT INTO {0} SELECT * FROM {0}"):
                connection.execute(sa.text(doing.format(f"deduplicate_tbl{suffix}")))
    with closing(Outbox(database.shop)) as outbox:
        with database.shop.begin() as connection:
            outbox.send(connection, Message("invoices", b"1"))
            outbox.send(connection, Message("invoices", b"2"), delay_s=600)
        assert (outbox.store.stats().waiting, outbox.store.stats().delayed) == (1, 1)


def test_the_user_who_runs_may_call_upgrade_while_the_tables_are_up_to_date(database):
    upgrade(database.shop)
    assert not check(database.shop)
    assert current(database.shop) == "0001"
    run(database.admin, "DROP TABLE deduplicate_tbl_alembic_version")
    with pytest.raises(sa.exc.DBAPIError, match="denied"):
        upgrade(database.shop)


def test_the_user_of_redis_has_what_a_checker_and_the_commands_need(private_redis):
    server = private_redis()
    [line] = blocks("Redis", "text")
    with redis.Redis.from_url(server.url) as admin:
        admin.execute_command(*line.split())
    url = re.sub("(?<=://).*@", "shop:change-me-2@", server.url)
    with closing(RedisChecker(url)) as checker:
        assert outcomes(checker) == EXPECTED
        assert checker.lead("metrics").take()
        assert checker.admin().measure().expired == 0
        assert len(list(checker.admin().list(KeyFilter()))) == 2
    assert not [finding for finding in redis_findings(url) if "permission" in finding.what.lower()]
