"""A worker that ends in order takes back what its unfinished handlers would count."""

from idempotent.claims import ClaimRequest, KeyStatus, Verdict
from idempotent.keys import KeySpace

KEYS = [KeySpace("orders", "default").key(name) for name in ("1", "2", "3")]


def test_the_lapse_of_an_excused_claim_is_no_attempt(store):
    checker, other = store.leased(), store.leased()
    if store.kind == "memory":
        other = checker
    for key in KEYS:
        assert checker.protocol.claim(ClaimRequest(key, max_attempts=1)).claim
    parked = KeySpace("orders", "default").key("parked")
    assert checker.protocol.claim(ClaimRequest(parked, status=KeyStatus.IN_PROGRESS_PARK)).claim
    checker.protocol.complete(
        checker.protocol.claim(ClaimRequest(KeySpace("orders", "default").key("done"))).claim
    )
    checker.protocol.excuse()
    held = checker.protocol.claim(
        ClaimRequest(KeySpace("orders", "default").key("after"), max_attempts=1)
    ).claim
    assert held
    checker.protocol._keeper.drop(checker.protocol._keeper.held)
    store.age(3600)
    for key in KEYS:
        decision = other.protocol.claim(ClaimRequest(key, max_attempts=1))
        assert (decision.verdict, decision.lapsed, decision.lapse_counts) == (Verdict.ACQUIRED, True, False)
    assert other.protocol.claim(ClaimRequest(held.key, max_attempts=1)).verdict is Verdict.DEAD
    assert other.admin().get(parked).status is KeyStatus.IN_PROGRESS_PARK
