"""No password of a URL, and no value of a statement, is shown, logged or stored."""

import subprocess
import sys

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from idempotent.claims import Failure
from idempotent.errors import LONGEST, StoreError, brief, mask, without_values
from idempotent.stores.sql.faults import as_store_error

CARD = "4111-1111"
# No other text here has its letters, so that each of them that is shown is found.
SECRET = "\u017fecre\u0167"
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
# What a URL may have there, and what is left unquoted by mistake: all but blanks. An @ ends it, an & the other form.
in_password = st.text(st.characters(exclude_categories=["Cc", "Cs", "Z"]), max_size=6)
in_query = st.text(st.characters(exclude_categories=["Cc", "Cs", "Z"], exclude_characters="&'\""), max_size=6)
urls = st.one_of(
    st.builds(
        "{}{}:{}{}{}@h/db".format,
        st.sampled_from(
            ["x://", "mysql+pymysql:/", "postgresql+psycopg//", "amqp:///", "redis://", "transactional+x://"]
        ),
        st.sampled_from(["", "me", "it's", "m%40e"]),
        in_password,
        st.just(SECRET),
        in_password,
    ),
    st.builds("rediss://{}@h".format, st.just(SECRET)),
    st.builds(
        "x://h/db?a=b&{}={}{}{}&c".format,
        st.sampled_from(["password", "SSL.key.Password", "my-token", "passcode", "client_secret_1"]),
        in_query,
        st.just(SECRET),
        in_query,
    ),
)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("mysql+pymysql://me:secret@h/db", "mysql+pymysql://me:***@h/db"),
        ("redis://:secret@h", "redis://:***@h"),
        ("redis://secret@h", "redis://***@h"),
        ("postgresql://me@h", "postgresql://me@h"),
        ("amqp://me:p@ss@h/", "amqp://me:***@h/"),
        ("x://me:a/b@h and y://u:c@i", "x://me:***@h and y://u:***@i"),
        ("postgresql://h/db?user=me&password=secret&x=1", "postgresql://h/db?user=me&password=***&x=1"),
        ("postgresql://h/db?sslpassword=secret", "postgresql://h/db?sslpassword=***"),
        ("kafka://h?sasl.password=secret", "kafka://h?sasl.password=***"),
        ("kafka://h?ssl.key.password=secret&x=1", "kafka://h?ssl.key.password=***&x=1"),
        ("sqlite:///a@b.db", "sqlite:///a@b.db"),
        ("http://host:80/path", "http://host:80/path"),
        ("mysql+pymysql:/me:secret@h/db", "mysql+pymysql:/me:***@h/db"),
        ("postgresql+psycopg//me:secret@h/db", "postgresql+psycopg//me:***@h/db"),
        ("orders:billing:me@example.org", "orders:billing:me@example.org"),
        ("redis:billing:me@example.org", "redis:billing:me@example.org"),
        ("cannot use 'x://me:secret@h'.", "cannot use 'x://me:***@h'."),
        ("cannot use 'x://h?password=secret'.", "cannot use 'x://h?password=***'."),
        ("amqp://me:it's@h", "amqp://me:***@h"),
        ("http://h:80 me@example.org", "http://h:80 me@example.org"),
    ],
)
def test_passwords_are_masked(text, masked):
    assert mask(text) == masked


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            f"(1062, \"Duplicate entry '{CARD}' for key 'PRIMARY'\")",
            "(1062, \"Duplicate entry *** for key 'PRIMARY'\")",
        ),
        (
            f"Incorrect integer value: '{CARD}' for column 'n' at row 1",
            "Incorrect integer value: *** for column 'n' at row 1",
        ),
        (f"Truncated incorrect INTEGER value: '{CARD}'", "Truncated incorrect INTEGER value: ***"),
        (f"duplicate key\nDETAIL:  Key (card)=({CARD}) already exists.", "duplicate key"),
        (
            f'invalid input syntax for type integer: "{CARD}"\nLINE 1: x',
            "invalid input syntax for type integer: ***\nLINE 1: x",
        ),
        *[
            (text.format(quoted), text.format("***"))
            for quoted, text in [
                (f"'18446744073709551615 + {CARD}'", '(1690, "BIGINT UNSIGNED value is out of range in {}")'),
                (f"'[{CARD}'", '(1105, "XPATH syntax error: {}")'),
                (f"'{CARD}'", "(1231, \"Variable 'sql_mode' can't be set to the value of {}\")"),
                (f"'{CARD}'", '(1298, "Unknown or incorrect time zone: {}")\n[SQL: SET time_zone = %s]'),
                (f'"& {CARD}"', "syntax error in tsquery: {}"),
                (f'"{CARD}"', "value {} is out of range for type integer"),
                (f'"{CARD}"', "malformed array literal: {}"),
                (f'"{CARD}"', 'invalid value for parameter "TimeZone": {}'),
            ]
        ],
        ('syntax error at or near "SELEC"', 'syntax error at or near "SELEC"'),
        ("ValueError: 'x' is no value", "ValueError: 'x' is no value"),
    ],
)
def test_values_that_a_database_quotes_are_removed(text, shown):
    assert without_values(text) == shown


def test_no_error_of_the_library_and_no_stored_failure_shows_them():
    text = f"cannot use postgresql://h/db?password={CARD}"
    assert CARD not in str(StoreError(text))
    assert CARD not in Failure(text, 1).error


@pytest.mark.parametrize("card", [CARD, f"]\n(x) {CARD}", f"] (Background on this error {CARD}"])
def test_parameters_of_any_text_are_removed(card):
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(sa.exc.OperationalError) as raised:
        connection.execute(sa.text("INSERT INTO missing VALUES (:card)"), {"card": card})
    engine.dispose()
    assert CARD in str(raised.value)
    shown = without_values(str(raised.value))
    assert CARD not in shown
    assert "no such table: missing" in shown
    assert "INSERT INTO missing" in shown


@given(any_text, st.sampled_from(["", " ", "'", '"', "(", "<", "://", "\n", "x@y "]), urls, any_text)
@settings(max_examples=500, deadline=None)
@example("x://h:80", "", f"x://me:{SECRET}@h", "")
def test_no_password_of_any_url_is_shown(before, between, url, behind):
    for text in (before + between + url, before + between + url + " " + behind, url + between + behind):
        assert SECRET not in mask(text)
        assert SECRET not in without_values(text)
        assert mask(mask(text)) == mask(text)


@given(urls, st.integers(0, 60))
@settings(max_examples=200, deadline=None)
def test_no_half_of_a_password_is_left_where_a_text_is_cut(url, left):
    text = "x" * (LONGEST - left - 1) + " " + url * 2
    for shown in (brief(text), without_values(text)):
        assert not set(SECRET) & set(shown) - set("ecr")
        assert "\0" not in shown


@pytest.mark.parametrize(
    "text",
    [
        'invalid input syntax for type integer: "{}"',
        "Incorrect integer value: '{}' for column 'n'",
        "Duplicate entry '{}' for key 'PRIMARY'",
        "Truncated incorrect INTEGER value: '{}'",
        'value "{}" is out of range for type integer',
        "x\nDETAIL:  Key (card)=({})",
        "[SQL: x]\n[parameters: ({})]",
    ],
)
def test_no_value_is_left_whose_end_is_cut(text):
    shown = without_values(text.format(CARD * LONGEST))
    assert CARD[:2] not in shown
    assert shown.startswith(text[:1])


# All that a sender puts into a value: line breaks, quotes, and what such texts themselves are made of.
BACKGROUND = "\n(Background on this error at: https://sqlalche.me/e/20/gkpj)"
parts = st.sampled_from(
    [
        *("\n", "\r\n", " ", "'", '"', ")", "]", "x", "'\n", '"\n', "\n[SQL: ", "\nDETAIL:  ", "\nLINE 1: "),
        *('" is out of range', "value: '", BACKGROUND, SECRET),
    ]
)
values = st.lists(parts, max_size=8).map(lambda some: "".join([*some, "\n", SECRET]))


@given(
    values,
    st.sampled_from(
        [
            "duplicate key\nDETAIL:  Key (card)=({}) already exists.",
            'null value in column "b"\nDETAIL:  Failing row contains (1, {}, null).\nCONTEXT:  COPY cards, line 1',
            "no\nCONTEXT:  unnamed portal parameter $1 = '{}'",
            'invalid input syntax for type json\nDETAIL:  Token "{}" is invalid.\nCONTEXT:  JSON data, line 1: {}',
            'invalid input syntax for type integer: "{}"\nLINE 1: SELECT $1\n        ^',
            'value "{}" is out of range for type integer',
            "Duplicate entry '{}' for key 'PRIMARY'",
            "Incorrect integer value: '{}' for column 'n' at row 1",
            "Truncated incorrect INTEGER value: '{}'",
        ]
    ),
    st.sampled_from(
        [
            "{}",
            "{}\n[SQL: INSERT INTO \"cards\" VALUES ('a')]" + BACKGROUND,
        ]
    ),
)
@settings(max_examples=1000, deadline=None)
@example(f"1\n{SECRET}", "xx\nDETAIL:  Key (card)=({}) already exists.", "{}")
def test_no_part_of_a_value_of_several_lines_is_shown(value, error, around):
    text = around.format(error.format(value, value))
    shown = without_values(text)
    assert SECRET not in shown
    assert shown.startswith(error[:2])
    assert SECRET not in without_values(" ".join(text.split())), "as it is shown on one line"


def test_advice_stays_behind_the_values_that_a_database_quotes():
    engine = sa.create_engine("postgresql+psycopg://h/db")
    driver_error = psycopg.errors.DeadlockDetected(
        f"deadlock detected\nDETAIL:  Process 1\n{CARD}\nHINT:  See"
    )
    shown = str(as_store_error(driver_error, engine, "deduplicate_tbl"))
    assert shown == "the store postgresql+psycopg://h/db is busy: deadlock detected. Try again."


def test_passwords_are_masked_while_an_interpreter_shuts_down(tmp_path):
    """Lines about tasks that were never awaited come then, and Python imports nothing any more."""
    program = """
import atexit, sys
from idempotent.errors import mask

def shut_down():
    sys.meta_path = None
    print(mask("cannot use redis://:secret@host/0?password=secret"))

atexit.register(shut_down)
"""
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ended.stdout.strip() == "cannot use redis://:***@host/0?password=***"
