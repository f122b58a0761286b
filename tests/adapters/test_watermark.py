"""The mark never passes what is unfinished, and never goes back."""

from hypothesis import given
from hypothesis import strategies as st

from idempotent.adapters.watermark import Watermark


@given(st.data(), st.lists(st.integers(), unique=True, max_size=40))
def test_the_mark_is_the_end_of_the_finished_beginning(data, positions):
    mark = Watermark()
    for position in positions:
        mark.add(position)
    finished = set()
    for position in data.draw(st.permutations(positions)):
        assert mark.finish(position)
        finished.add(position)
        begun = [p for i, p in enumerate(positions) if finished.issuperset(positions[: i + 1])]
        assert mark.last == (begun[-1] if begun else None)
        assert len(mark) == len(positions) - len(begun)


def test_a_position_is_finished_once():
    mark = Watermark()
    mark.add("a")
    mark.add("b")
    assert mark.finish("b")
    assert not mark.finish("b")
    assert not mark.finish("unknown")
    assert mark.last is None
    assert mark.finish("a")
    assert mark.last == "b"
    assert not mark.finish("a")


def test_a_discarded_position_is_passed_and_never_named():
    mark = Watermark[str]()
    for position in "abcde":
        mark.add(position)
    mark.discard("b")
    assert mark.last is None
    mark.finish("a")
    mark.finish("d")
    assert mark.last == "a"
    mark.discard("c")
    assert mark.last == "d"
    mark.discard("e")
    assert (mark.last, len(mark)) == ("d", 0)
