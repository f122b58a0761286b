"""Rows are inserted unless their key is there, and a row that another rule of the table refuses is never lost."""

import datetime as dt
from contextlib import contextmanager
from decimal import Decimal
from secrets import token_hex
from threading import Barrier, Thread

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from idempotent.adapters.spark.tables import Inserts
from idempotent.errors import ConfigurationError, StoreError
from tests.support.privileges import user_of_tables

COLUMNS = ("order_id", "amount")
ROWS = [(f"o{number}", number) for number in range(250)]


class Table:
    """A table of its own in one database."""

    def __init__(self, engine):
        self.engine = engine
        self.name = f"t{token_hex(6)}"
        self.url = engine.url.render_as_string(hide_password=False)

    def create(self, columns):
        self.do(f"CREATE TABLE {self.name} ({columns})")
        return self

    def do(self, statement):
        with self.engine.begin() as connection:
            answer = connection.execute(sa.text(statement))
            return answer.all() if answer.returns_rows else []

    def rows(self, columns="order_id, amount"):
        return sorted(tuple(row) for row in self.do(f"SELECT {columns} FROM {self.name}"))

    def inserts(self, columns=COLUMNS, key=(), chunk=100):
        return Inserts(self.url, self.name, columns, key, chunk).checked()


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def table(request, tmp_path):
    """With the primary key order_id, unless a test makes another one."""
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'out.db'}" if is_sqlite else request.getfixturevalue(f"{request.param}_url")
    engine = sa.create_engine(url, poolclass=NullPool)
    yield (table := Table(engine))
    if not is_sqlite:
        table.do(f"DROP TABLE IF EXISTS {table.name}")


@pytest.fixture
def orders(table):
    return table.create("order_id VARCHAR(20) NOT NULL PRIMARY KEY, amount INT")


def test_rows_are_inserted_once_however_often(orders):
    inserts = orders.inserts()
    inserts(ROWS[:130])
    for _ in range(2):
        inserts(ROWS)
    assert orders.rows() == sorted(ROWS)


def test_a_row_that_is_there_stays_as_it_is(orders):
    orders.do(f"INSERT INTO {orders.name} VALUES ('o7', -1)")
    orders.inserts()(ROWS)
    assert dict(orders.rows())["o7"] == -1
    assert len(orders.rows()) == len(ROWS)


def test_two_writers_of_the_same_rows_in_other_orders_insert_each_once(orders):
    together, failed = Barrier(2), []

    def insert(rows):
        try:
            together.wait(30)
            orders.inserts(chunk=50)(rows)
        except Exception as error:
            failed.append(error)

    threads = [Thread(target=insert, args=(rows,)) for rows in (ROWS, ROWS[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert orders.rows() == sorted(ROWS)


def test_a_key_of_several_columns_beside_a_primary_key_that_the_database_makes(table):
    number = {"sqlite": "INTEGER PRIMARY KEY", "postgresql": "SERIAL PRIMARY KEY"}.get(
        table.engine.dialect.name, "INT AUTO_INCREMENT PRIMARY KEY"
    )
    table.create(f"id {number}, shop INT NOT NULL, day DATE NOT NULL, amount INT, UNIQUE (day, shop)")
    days = [(shop, dt.date(2026, 11, day), shop * day) for shop in (1, 2) for day in (20, 21)]
    inserts = table.inserts(("shop", "day", "amount"), key=("shop", "day"))
    for _ in range(2):
        inserts(days)
    assert len(table.rows("shop, day, amount")) == len(days)
    with pytest.raises(ConfigurationError, match=r"id is no unique key.* that the rows have"):
        table.inserts(("shop", "day", "amount"))


def test_another_unique_key_that_refuses_fails_and_inserts_nothing_of_the_chunk(table):
    table.create("order_id VARCHAR(20) NOT NULL PRIMARY KEY, amount INT, UNIQUE (amount)")
    table.do(f"INSERT INTO {table.name} VALUES ('other', 7)")
    with pytest.raises((StoreError, ConfigurationError), match=r"failed|1 of 100 rows would be lost"):
        table.inserts()(ROWS)
    assert table.rows() == [("other", 7)]
    table.do(f"DELETE FROM {table.name}")
    table.inserts()(ROWS)
    assert table.rows() == sorted(ROWS)


# A type of the key's column in SQLite, PostgreSQL and MySQL, and two keys that are one in it.
ONE_OF_TWO = {
    "capitals": (("TEXT COLLATE NOCASE", "TEXT COLLATE {ci}", "VARCHAR(20)"), "a", "A"),
    "a space at the end": (("TEXT COLLATE RTRIM", "CHAR(5)", "CHAR(5)"), "a", "a "),
    "numbers as texts": (("INTEGER", "INT", "INT"), "1", "01"),
    "parts of a cent": ((None, "NUMERIC(10, 2)", "DECIMAL(10, 2)"), Decimal("1.001"), Decimal("1.002")),
    "times of a day": ((None, "DATE", "DATE"), dt.datetime(2026, 11, 29, 1), dt.datetime(2026, 11, 29, 2)),  # noqa: DTZ001 - as Spark has it
    "parts of a second": (
        (None, "TIMESTAMP(0)", "DATETIME"),
        dt.datetime(2026, 11, 29, 1, 0, 0, 100000),  # noqa: DTZ001
        dt.datetime(2026, 11, 29, 1, 0, 0, 200000),  # noqa: DTZ001
    ),
    "large numbers": ((None, "REAL", "FLOAT"), 16777216, 16777217),
    "two texts of a UUID": (
        (None, "UUID", None),
        "6F9619FF-8B86-D011-B42D-00CF4FC964FF",
        "6f9619ff-8b86-d011-b42d-00cf4fc964ff",
    ),
}


@pytest.mark.parametrize("case", ONE_OF_TWO)
def test_two_keys_that_the_database_takes_for_one_are_no_row_lost(table, case):
    """In one run, and in two: the run has told them apart."""
    kinds, first, second = ONE_OF_TWO[case]
    kind = kinds[["sqlite", "postgresql", "mysql"].index(table.engine.dialect.name)]
    if kind is None:
        pytest.skip("this database tells them apart")
    if "{ci}" in kind:
        kind = kind.format(ci=f"c{table.name}")
        table.do(
            f"CREATE COLLATION c{table.name} (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
        )
    table.create(f"order_id {kind} NOT NULL PRIMARY KEY, amount INT")
    inserts = table.inserts()
    with pytest.raises(ConfigurationError, match=r"[12] of 2 rows would be lost: .* have their order_id as"):
        inserts([(first, 1), (second, 2)])
    assert table.rows() == []
    # The first one if the table cannot have such a key at all.
    with pytest.raises(ConfigurationError, match="1 of 1 rows would be lost"):
        table.inserts(chunk=1)([(first, 1), (second, 2)])
    with table.engine.begin() as connection:
        connection.execute(sa.text(f"DROP TABLE {table.name}"))
        if "COLLATE c" in kind:
            connection.execute(sa.text(f"DROP COLLATION c{table.name}"))


# A type of the key's column in SQLite, PostgreSQL and MySQL, and two keys that it takes as they are.
KEPT = {
    "texts": (("TEXT", "TEXT", "VARCHAR(20) COLLATE utf8mb4_bin"), "a", "A"),
    "texts of one length": (("CHAR(5)", "CHAR(5)", "CHAR(5) COLLATE utf8mb4_bin"), "a", "b"),
    "bytes": (("BLOB", "BYTEA", "VARBINARY(20)"), bytearray(b"a"), bytearray(b"a ")),
    "numbers": (("INTEGER", "BIGINT", "BIGINT"), 1, 2**40),
    "numbers as texts": (("TEXT", "TEXT", "VARCHAR(20)"), 1, 2**40),
    "texts as numbers": (("INTEGER", "BIGINT", "BIGINT"), "5", "6"),
    "dates as times": (
        ("DATETIME", "TIMESTAMP", "DATETIME"),
        dt.date(2026, 11, 29),
        dt.date(2026, 11, 30),
    ),
    "decimals": ((None, "NUMERIC(10, 3)", "DECIMAL(10, 3)"), Decimal("1.5"), Decimal("1.501")),
    "truth": (("BOOLEAN", "BOOLEAN", "BOOLEAN"), True, False),
    "dates": (("DATE", "DATE", "DATE"), dt.date(2026, 11, 29), dt.date(2026, 11, 30)),
    "times": (
        ("DATETIME", "TIMESTAMPTZ", "DATETIME(6)"),
        dt.datetime(2026, 11, 29, 1, 0, 0, 100000),  # noqa: DTZ001
        dt.datetime(2026, 11, 29, 1, 0, 0, 200000),  # noqa: DTZ001
    ),
    "UUIDs": (
        (None, "UUID", None),
        "6f9619ff-8b86-d011-b42d-00cf4fc964ff",
        "6f9619ff-8b86-d011-b42d-00cf4fc964fe",
    ),
    "addresses": ((None, "INET", None), "10.0.0.1", "10.0.0.2"),
}


@pytest.mark.parametrize("case", KEPT)
def test_keys_that_the_database_keeps_as_they_are_are_taken(table, case):
    kinds, first, second = KEPT[case]
    kind = kinds[["sqlite", "postgresql", "mysql"].index(table.engine.dialect.name)]
    if kind is None:
        pytest.skip("this database has no such type")
    table.create(f"order_id {kind} NOT NULL PRIMARY KEY, amount INT")
    inserts = table.inserts()
    for _ in range(2):
        inserts([(first, 1), (second, 2)])
    assert len(table.rows("amount")) == 2


def test_a_text_with_a_space_at_its_end_beside_one_that_is_filled_up(table):
    kind = "VARCHAR(9) COLLATE utf8mb4_bin" if table.engine.dialect.name == "mysql" else "VARCHAR(9)"
    table.create(f"order_id {kind} NOT NULL, shop CHAR(5) NOT NULL, PRIMARY KEY (order_id, shop)")
    inserts = table.inserts(("order_id", "shop"))
    for _ in range(2):
        inserts([("x ", "y"), ("z", "y")])
    assert len(table.rows("shop")) == 2


@pytest.mark.parametrize("table", ["postgres"], indirect=True)
def test_a_trigger_that_drops_rows_is_found_out(orders):
    name = orders.name
    orders.do(
        f"CREATE FUNCTION f{name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;"
        f"CREATE TRIGGER g BEFORE INSERT ON {name} FOR EACH ROW EXECUTE FUNCTION f{name}()"
    )
    with pytest.raises(ConfigurationError, match="100 of 100 rows would be lost"):
        orders.inserts()(ROWS)


def test_names_may_have_signs_that_drivers_take_for_markers(table):
    quote = "`" if table.engine.dialect.name == "mysql" else '"'
    names = ("50% ?", "$1 %s")
    with table.engine.begin() as connection:
        columns = f"{quote}50% ?{quote} INT NOT NULL PRIMARY KEY, {quote}$1 %s{quote} INT"
        if table.engine.dialect.name != "sqlite":
            columns = columns.replace("%", "%%")
        connection.exec_driver_sql(f"CREATE TABLE {table.name} ({columns})")
    inserts = table.inserts(names)
    for _ in range(2):
        inserts([(1, 2), (3, 4)])
    assert len(table.rows("1")) == 2


@pytest.mark.parametrize(
    ("columns", "key", "reason"),
    [
        ("order_id VARCHAR(20) NOT NULL PRIMARY KEY", (), "has no column 'amount', but order_id"),
        ("order_id VARCHAR(20) NOT NULL, amount INT", (), "nothing is no unique key.*key="),
        ("order_id VARCHAR(20) NOT NULL, amount INT", ("order_id",), "is no unique key"),
        (
            "order_id VARCHAR(20), amount INT, UNIQUE (order_id)",
            ("order_id",),
            "order_id is no unique key of .* NOT NULL",
        ),
        ("order_id VARCHAR(20) NOT NULL PRIMARY KEY, amount INT", ("amount",), "is no unique key"),
        ("order_id VARCHAR(20) NOT NULL PRIMARY KEY, amount INT", ("when",), "when is no unique key"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_at_once(table, columns, key, reason):
    table.create(columns)
    with pytest.raises(ConfigurationError, match=reason):
        table.inserts(key=key)


@pytest.mark.parametrize("table", ["sqlite", "postgres"], indirect=True)
def test_an_index_over_some_of_the_rows_is_no_unique_key(table):
    table.create("order_id VARCHAR(20) NOT NULL, amount INT")
    table.do(f"CREATE UNIQUE INDEX u{table.name} ON {table.name} (order_id) WHERE amount > 7")
    with pytest.raises(ConfigurationError, match="is no unique key"):
        table.inserts(key=("order_id",))


def test_a_missing_table_and_another_kind_of_url_are_refused(table):
    with pytest.raises(ConfigurationError, match=f"no table {table.name}"):
        table.inserts()
    for url in ("jdbc:postgresql://host/db", "oracle://host/db", "redis://host"):
        with pytest.raises(ConfigurationError, match=r"URL|not supported"):
            Inserts(url, "orders", COLUMNS, (), 100).checked()


@pytest.mark.parametrize("table", ["postgres", "mysql"], indirect=True)
def test_a_user_without_the_right_is_told_so(orders):
    with user_of_tables(orders.engine, f"u{token_hex(4)}", [orders.name], "SELECT") as url:
        inserts = Inserts(url, orders.name, COLUMNS, (), 100).checked()
        with pytest.raises(StoreError, match="lacks a right"):
            inserts(ROWS)
    with rights(orders) as url:
        for _ in range(2):
            Inserts(url, orders.name, COLUMNS, (), 100).checked()(ROWS)
    assert orders.rows() == sorted(ROWS)


@contextmanager
def rights(table):
    """Of a user with no more than docs/spark-tables.md says."""
    may = "SELECT, INSERT" + (", UPDATE" if table.engine.dialect.name == "mysql" else "")
    with user_of_tables(table.engine, f"u{token_hex(4)}", [table.name], may) as url:
        yield url


def test_values_of_all_kinds_and_names_with_capitals_arrive(table):
    quote = "`" if table.engine.dialect.name == "mysql" else '"'
    names = ("Order", "paid at", "Price", "raw", "note")
    kinds = ("BIGINT NOT NULL", "TIMESTAMP(6)", "DECIMAL(10, 2)", "BLOB", "VARCHAR(50)")
    if table.engine.dialect.name == "postgresql":
        kinds = ("BIGINT NOT NULL", "TIMESTAMPTZ", "NUMERIC(10, 2)", "BYTEA", "TEXT")
    if table.engine.dialect.name == "mysql":
        kinds = ("BIGINT NOT NULL", "DATETIME(6)", "DECIMAL(10, 2)", "BLOB", "VARCHAR(50)")
    columns = ", ".join(f"{quote}{name}{quote} {kind}" for name, kind in zip(names, kinds, strict=True))
    table.create(f"{columns}, PRIMARY KEY ({quote}Order{quote})")
    price = 7.25 if table.engine.dialect.name == "sqlite" else Decimal("7.25")
    row = (
        2**40,
        dt.datetime.fromisoformat("2026-11-29T01:02:03.000456"),
        price,
        bytearray(b"\0\xff"),
        "日 ? %s $1",
    )
    inserts = table.inserts(names)
    for _ in range(2):
        inserts([row, (1, None, None, None, None)])
    if table.engine.dialect.name == "postgresql":
        ((seconds,),) = table.do(f'SELECT EXTRACT(EPOCH FROM "paid at") FROM {table.name} WHERE "Order" > 1')
        assert float(seconds) == pytest.approx(row[1].replace(tzinfo=dt.UTC).timestamp())
    ((price, raw, note),) = table.do(
        f"SELECT {quote}Price{quote}, raw, note FROM {table.name} WHERE {quote}Order{quote} > 1"
    )
    assert (float(price), bytes(raw), note) == (7.25, b"\0\xff", row[4])
