"""`idempotent outbox` on ids that look alike, on texts that a terminal would obey, and on holds that are incomplete."""

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Message
from tests.cli.outbox.sending import send, until
from tests.cli.outbox.test_outbox import held, words

ESCAPE = "\x1b[2J"


@pytest.fixture
def change(sql_store, outbox):
    """`change(statement)`: with `{}` for the name of the outbox. The lane that refuses `a` is held before."""
    relay, _ = held(outbox, sql_store)
    with relay:
        until(lambda: outbox.store.stats().held == 2)

    def change(statement):
        with sql_store.admin_engine.begin() as connection:
            connection.execute(sa.text(statement.format(f"{sql_store.table}_outbox")))

    return change


def test_an_id_with_a_blank_at_its_end_is_another_one(cli, outbox, sql_store):
    send(outbox, sql_store, "a")
    send(outbox, sql_store, "later", delay_s=600)
    for name in ("a", "later"):
        for command in (("show",), ("show", "--body"), ("retry",), ("drop", "--yes")):
            assert cli("outbox", *command, f"{name} ", *words(sql_store)).code == 1, command
    stats = outbox.store.stats()
    assert (stats.waiting, stats.delayed) == (1, 1)
    send(outbox, sql_store, "a ", subject="other")
    assert cli("outbox", "show", "a ", *words(sql_store), "--json").line["subject"] == "other"
    assert cli("outbox", "drop", "a ", "--yes", *words(sql_store)).code == 0
    assert cli("outbox", "show", "a", *words(sql_store)).code == 0


def test_show_has_the_headers_and_no_line_without_a_value(cli, outbox, sql_store):
    with Session(sql_store.admin_engine) as session, session.begin():
        outbox.send(session, Message("invoices", b"1", headers={"kind": "paid", "raw": b"\x00"}, id="a"))
    lines = cli("outbox", "show", "a", *words(sql_store)).out.splitlines()
    assert "header kind: paid" in lines
    assert r"header raw: b'\x00'" in lines
    assert not [line for line in lines if "None" in line or line.endswith(": ")]
    shown = cli("outbox", "show", "a", *words(sql_store), "--json").line
    assert shown["headers"] == {"kind": "paid", "raw": r"b'\x00'"}


def test_show_of_an_unknown_id_is_an_object_for_machines(cli, outbox, sql_store):
    answer = cli("outbox", "show", "nothing", *words(sql_store), "--json")
    assert (answer.code, answer.line) == (1, {"message_id": "nothing", "subject": None})
    assert cli("outbox", "show", "nothing", *words(sql_store), "--json", "--body").out == ""


def test_a_retry_that_is_due_is_not_in_the_past(cli, sql_store, change):
    change("UPDATE {}_held SET due_at = 0")
    assert cli("outbox", "show", "a", *words(sql_store), "--json").line["retry_in_s"] == 0
    assert "retry in s: 0.0" in cli("outbox", "show", "a", *words(sql_store)).out


@pytest.mark.parametrize(
    ("lost", "said", "lanes", "freed"),
    [
        ("DELETE FROM {}_held", "held, but nothing says why", 0, 2),
        (
            "DELETE FROM {} WHERE message_id = 'a'",
            "held, but the refused message that it waits behind is gone",
            1,
            0,
        ),
    ],
)
def test_what_is_held_without_a_reason_comes_with_what_to_type(
    cli, sql_store, change, lost, said, lanes, freed
):
    change(lost)
    listed = cli("outbox", "list", "--held", *words(sql_store)).out
    assert f"{said}: idempotent outbox retry" in listed.splitlines()[-1]
    assert f"{said}: idempotent outbox retry" in cli("outbox", "show", "b", *words(sql_store)).out
    assert cli("outbox", "retry", *words(sql_store), "--json").line == {"lanes": lanes, "freed": freed}


def test_what_a_terminal_would_obey_is_written_out(cli, outbox, sql_store):
    send(outbox, sql_store, f"a{ESCAPE}\nb", subject=f"s{ESCAPE}", order_key=f"k{ESCAPE}")
    listed = cli("outbox", "list", *words(sql_store)).out
    _, line = listed.splitlines()
    assert line.startswith(r"'a\x1b[2J\nb'  's\x1b[2J'  'k\x1b[2J'")
    shown = cli("outbox", "show", f"a{ESCAPE}\nb", *words(sql_store)).out
    assert r"message id: 'a\x1b[2J\nb'" in shown.splitlines()
    assert "\x1b" not in cli("outbox", "show", f"x{ESCAPE}", *words(sql_store)).err
