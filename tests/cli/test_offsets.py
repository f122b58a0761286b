"""`idempotent offsets`: how far partitions are processed, shown and set by a person."""

from contextlib import closing

import pytest

from idempotent.checkers import OffsetChecker
from idempotent.keys import KeySpace
from tests.cli.support import at

SHIPPED = KeySpace("orders.shipped", "billing")
OLD, NEW = "0d1fdd1e-old_topic-id", "7c1fdd1e-new_topic-id"


@pytest.fixture
def stored(sql_store):
    """`stored()`: the offsets by place; of a topic that was made twice, and of two groups."""
    checker = OffsetChecker(sql_store.engine(), table=sql_store.table)
    with closing(checker):
        checker.begin({SHIPPED.key(f"{NEW}/{number}"): 100 + number for number in (0, 1)})
        checker.begin({SHIPPED.key(f"{OLD}/1"): 7, KeySpace("orders.shipped", "mail").key(f"{NEW}/0"): 3})
        yield lambda: {(each.key.consumer, each.place): each.next_offset for each in checker.stored()}


def test_offsets_are_shown_and_set_after_a_dry_run(cli, sql_store, stored):
    shown = cli("offsets", "show", *at(sql_store), "--json").lines
    assert {(line["consumer"], line["place"]): line["next_offset"] for line in shown} == stored()
    assert len(shown) == 4
    assert f"{NEW}/0" in cli("offsets", "show", *at(sql_store)).out
    before = stored()
    words = ("offsets", "set", "billing", "orders.shipped", "0", "40")
    dry = cli(*words, *at(sql_store), "--dry-run")
    assert (dry.code, stored()) == (0, before)
    assert "from offset 100 to 40: 60 offsets will run again" in dry.out
    assert cli(*words, *at(sql_store), input="n\n").code != 0
    assert stored() == before
    done = cli(*words, *at(sql_store), "--yes", "--json")
    assert (done.code, done.line["before"], done.line["next_offset"]) == (0, 100, 40)
    assert stored() == {**before, ("orders.shipped:billing", f"{NEW}/0"): 40}


def test_of_two_topics_with_one_name_the_id_chooses(cli, sql_store, stored):
    before = stored()
    words = ("offsets", "set", "billing", "orders.shipped", "1", "102", "--yes", *at(sql_store))
    answer = cli(*words)
    assert (answer.code, stored()) == (1, before)
    assert OLD in answer.err
    assert NEW in answer.err
    assert cli(*words, "--topic-id", NEW).code == 0
    assert stored() == {**before, ("orders.shipped:billing", f"{NEW}/1"): 102}


@pytest.mark.parametrize(
    "words", ["ship orders.shipped 0 1", "billing orders 0 1", "billing orders.shipped 2 1"]
)
def test_what_is_not_stored_is_not_set(cli, sql_store, stored, words):
    before = stored()
    answer = cli("offsets", "set", *words.split(), "--yes", *at(sql_store))
    assert (answer.code, stored()) == (1, before)
    assert "not stored" in answer.err
