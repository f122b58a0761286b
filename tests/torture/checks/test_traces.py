"""What is shown about a message whose history breaks a rule."""

import pytest

from tests.torture.examination.history import traces
from tests.torture.journal import Journal, What
from tests.torture.stores import Effect


def effect(id, at, position=""):
    return Effect(id, position, "1.1", attempt=2, fence=7, at=at, wall=at)


@pytest.fixture
def journal(tmp_path):
    path = tmp_path / "consumer-0.jsonl"
    return path, Journal(str(path), "0.1")


def test_every_word_about_it_comes_in_the_order_of_time(journal):
    path, written = journal
    written.write(What.HELD, id="m-1", position="")
    written.write(What.SETTLED, id="m-2", position="", outcome="processed", error="")
    written.write(What.SETTLED, id="m-1", position="", outcome="failed", error="no room")
    (lines,) = traces([path], [effect("m-1", at=1.5), effect("m-2", at=1.5)], ["m-1"], 1.0).values()
    assert lines[0] == "   0.50 s  consumer 1.1  effect  attempt 2  fence 7"
    assert [line.split("consumer ")[1] for line in lines[1:]] == [
        "0.1  held",
        "0.1  settled  outcome failed  error no room",
    ]


def test_an_effect_of_the_journal_is_shown_once(journal):
    path, written = journal
    written.write(What.EFFECT, id="m-1", position="t/0/7", process="1.1", attempt=2, fence=7)
    assert len(traces([path], [effect("m-1", at=1.5)], ["m-1"], 0.0)["m-1"]) == 1


def test_one_known_by_its_position_is_found(journal):
    path, written = journal
    written.write(What.HELD, id="m-1", position="t/0/7")
    assert len(traces([path], [effect("m-1", 1.5, "t/0/7")], ["t/0/7"], 0.0)["t/0/7"]) == 2


def test_an_unknown_message_has_no_trace(journal, tmp_path):
    assert traces([journal[0], tmp_path / "none"], [], ["m-1"], 0.0) == {"m-1": []}
