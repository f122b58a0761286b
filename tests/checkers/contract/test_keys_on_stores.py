"""Keys are exact on every back end, for whatever ids hypothesis comes up with."""

import secrets
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from idempotent.claims import ClaimRequest, Completion, Verdict
from idempotent.keys import KeySpace
from tests.support.stores import ALL, SQL, open_store

tricky = st.text(alphabet=st.sampled_from("aA :%\x00\u00e9e\u0301\U0001f600\\'\""), max_size=6)
ids = st.text(max_size=300) | tricky | st.binary(max_size=300)
# The store stays open from one example to the next; each example has a key space of its own.
fifty = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=[*ALL, *(f"transactional {kind}" for kind in SQL)])
def checker(request):
    guarantee, _, kind = request.param.rpartition(" ")
    with contextmanager(open_store)(kind, request) as store:
        yield store.transactional() if guarantee else store.leased()


@fifty
@given(message_ids=st.lists(ids, min_size=1, max_size=12))
def test_each_different_id_is_claimed_once_and_recognised(checker, message_ids):
    space = KeySpace("orders", secrets.token_hex(8))
    keys = {key.hash: key for key in map(space.key, message_ids)}.values()
    means = {m if isinstance(m, bytes) else m.encode("utf-8", "surrogatepass") for m in message_ids}
    assert len(keys) == len(means)
    decisions = checker.protocol.claim_many([ClaimRequest(key) for key in keys])
    assert [decision.verdict for decision in decisions] == [Verdict.ACQUIRED] * len(keys)
    assert all(checker.protocol.complete_many([Completion(d.claim, d.claim.key.hash) for d in decisions]))
    for message_id in message_ids:
        again = checker.protocol.claim(ClaimRequest(space.key(message_id)))
        assert again.verdict is Verdict.DUPLICATE
        assert again.result == space.key(message_id).hash


@fifty
@given(one=st.tuples(tricky, tricky, tricky), other=st.tuples(tricky, tricky, tricky))
def test_equal_parts_are_one_key_and_others_are_two(checker, one, other):
    nonce = secrets.token_hex(8)
    first, second = (
        KeySpace(nonce + subject, group).key(message_id) for subject, group, message_id in (one, other)
    )
    claim = checker.protocol.claim(ClaimRequest(first)).claim
    assert claim is not None
    assert checker.protocol.complete(claim)
    decision = checker.protocol.claim(ClaimRequest(second))
    assert decision.verdict is (Verdict.DUPLICATE if one == other else Verdict.ACQUIRED)
    if decision.claim is not None:
        checker.protocol.release(decision.claim)
