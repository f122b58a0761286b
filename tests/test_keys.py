"""A key is exact, and its text tells it apart for people."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from idempotent.keys import HASH_BYTES, TEXT_LIMIT, Key, KeySpace, consumer_named, key_from_text

# Characters that somebody's escaping, folding or column gets wrong, among any others.
tricky = st.text(
    alphabet=st.sampled_from("aA :%~/\x00\n\u00e9e\u0301\u212b\u00c5\U0001f600\ud83d'\\5"), max_size=8
)
parts = st.text(max_size=20) | tricky
ids = parts | st.binary(max_size=20)


def meaning(message_id):
    return message_id if isinstance(message_id, bytes) else message_id.encode("utf-8", "surrogatepass")


@pytest.mark.slow
@given(ids, ids)
@example("Order-1", "order-1")
@example("order-1", "order-1 ")
@example("caf\u00e9", "cafe\u0301")
@example("a", "a\x00")
@example("", "\x00")
@example(b"%FF", b"\xff")
def test_different_ids_have_different_keys_and_texts(one, other):
    space = KeySpace("orders", "billing")
    first, second = space.key(one), space.key(other)
    assert (first.hash == second.hash) is (meaning(one) == meaning(other))
    assert (first.text == second.text) is (first.hash == second.hash)


@given(st.tuples(parts, parts, ids), st.tuples(parts, parts, ids))
@example(("a", "b", "c:d"), ("a", "b:c", "d"))
@example(("a:b", "c", "d"), ("a", "b:c", "d"))
@example(("a", "", "b"), ("", "a", "b"))
@example(("a%3Ab", "c", "d"), ("a:b", "c", "d"))
@example(("ab", "", ""), ("a", "b", ""))
def test_parts_that_read_the_same_when_joined_are_different_keys(one, other):
    first, second = (KeySpace(subject, group).key(message_id) for subject, group, message_id in (one, other))
    same = (*one[:2], meaning(one[2])) == (*other[:2], meaning(other[2]))
    assert (first.hash == second.hash) is same
    assert (first.text == second.text) is same


@given(parts, parts, ids)
def test_the_text_is_one_printable_line_that_fits_the_column(subject, group, message_id):
    text = KeySpace(subject, group).key(message_id).text
    assert len(text) <= TEXT_LIMIT
    assert text.isprintable()


@given(parts, parts, ids)
@example("a:b", "c%", "d:e:f")
@example("s", "g", "a%2Fb")
@example("s", "g", b"\xff\x00")
def test_a_text_leads_back_to_its_key(subject, group, message_id):
    key = KeySpace(subject, group).key(message_id)
    assert key_from_text(key.text) == key


@given(st.text(min_size=1), st.integers(0, 600))
@example("\u00e9", 130)
def test_a_long_text_leads_back_to_its_key_too(message_id, repeated):
    key = KeySpace("orders", "billing").key(message_id * repeated)
    assert key_from_text(key.text) == key


def test_ids_that_differ_only_past_the_column_have_different_texts():
    space = KeySpace("orders", "billing")
    one, other = space.key("x" * 1_000_000 + "a"), space.key("x" * 1_000_000 + "b")
    assert one.hash != other.hash
    assert one.text != other.text
    assert len(one.text) == TEXT_LIMIT


@pytest.mark.parametrize("length", range(230, 260))
def test_texts_around_the_limit_lead_back_to_their_keys(length):
    key = KeySpace("orders", "billing").key("x" * length)
    assert len(key.text) <= TEXT_LIMIT
    assert key_from_text(key.text) == key


def test_an_id_that_looks_like_a_cut_text_is_not_taken_for_one():
    space = KeySpace("s", "g")
    cut = space.key("x" * 300)
    forged = space.key(cut.text.removeprefix("s:g:"))
    assert forged.hash != cut.hash
    assert forged.text != cut.text
    assert key_from_text(forged.text) == forged


def test_long_bytes_of_wide_characters_lead_back_to_their_key():
    space = KeySpace("s", "g")
    one, other = space.key("\u00e9".encode() * 150), space.key("\u00e9".encode() * 151)
    assert one.text == space.key("\u00e9" * 150).text
    assert one.text != other.text
    assert key_from_text(one.text) == one


@pytest.mark.parametrize("other", [b"\xff", "\udced\udcb3\udcbf"])
def test_a_lone_surrogate_is_not_the_byte_it_stands_for_elsewhere(other):
    space = KeySpace("s", "g")
    lone = space.key("\udcff")
    assert lone == space.key(b"\xed\xb3\xbf")
    assert lone.hash != space.key(other).hash
    assert lone.text != space.key(other).text
    assert key_from_text(lone.text) == lone


def test_text_and_its_utf8_bytes_are_one_id():
    space = KeySpace("orders", "billing")
    assert space.key("caf\u00e9") == space.key("caf\u00e9".encode())


def test_a_hash_in_hex_is_a_key_without_a_text():
    key = KeySpace("orders", "billing").key("1")
    found = key_from_text(key.token)
    assert found is not None
    assert found.hash == key.hash


@pytest.mark.parametrize("text", ["", "orders", "orders:billing", "g" * 40, "0" * 39])
def test_what_is_no_key_text_is_no_key(text):
    assert key_from_text(text) is None


def test_a_key_reads_as_its_text():
    key = KeySpace("orders", "billing").key("1")
    assert str(key) == "orders:billing:1"
    assert key.token == key.hash.hex()
    assert len(key.hash) == HASH_BYTES


def test_the_hash_of_a_key_never_changes():
    """Stored keys outlive every version of the library."""
    assert KeySpace("orders", "billing").key("1") == Key(
        bytes.fromhex("f1e03ec98c32e3f5b08f3eb2b5382094b31b6b2a"), "orders:billing:1"
    )


LONG = [
    ("t" * 249, "g" * 249),
    ("t" * 249, "g"),
    ("t" * 213, "g"),
    ("t" * 212, "g"),
    ("t" * 211, "g"),
    ("s", "g" * 212),
    ("\u00e9" * 249, "g"),
    ("a:b%" * 62, "g"),
    ("\x00" * 249, "\x00" * 249),
]


@pytest.mark.parametrize(("subject", "group"), LONG)
@pytest.mark.parametrize("message_id", ["", "1", "x" * 40, "x" * 1000, b"\xff"])
def test_the_text_of_a_long_consumers_key_leads_back_to_it(subject, group, message_id):
    space = KeySpace(subject, group)
    key = space.key(message_id)
    assert len(key.text) <= TEXT_LIMIT
    assert key_from_text(key.text).hash == key.hash
    assert key.consumer == space.name
    assert space.name.isprintable()
    assert space.name.count(":") == 1


@pytest.mark.parametrize(("subject", "group"), LONG)
def test_a_persons_long_name_is_the_consumers_whole_or_as_it_is_shown(subject, group):
    space = KeySpace(subject, group)
    assert consumer_named(space.name) == space.name
    whole = f"{subject}:{group}"
    if whole.isprintable() and "%" not in whole:
        assert consumer_named(whole) == space.name


def test_long_consumers_that_differ_only_at_the_end_have_different_names():
    names = {
        KeySpace("t" * 248 + end, group).name
        for end in "ab"
        for group in ("g", "h", "g" * 249, "g" * 248 + "h")
    }
    assert len(names) == 8


@pytest.mark.parametrize("name", ["", ":", "orders", "orders:", ":billing", "a:b:c", "%FF:b"])
def test_what_is_no_name_of_a_consumer_is_none(name):
    assert consumer_named(name) is None
