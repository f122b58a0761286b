"""A group waits for no key of another one, however few keys the table has: a server may read all of a small table."""

import pytest

from idempotent.claims import ClaimRequest, Completion, Failure, Verdict
from idempotent.keys import KeySpace

SPACE = KeySpace("orders", "default")
MINE = [SPACE.key(str(number)) for number in range(3)]


def claimed(checker, keys):
    decisions = checker.desk.claim_many([ClaimRequest(key) for key in keys])
    assert {decision.verdict for decision in decisions} == {Verdict.ACQUIRED}
    return [decision.claim for decision in decisions]


@pytest.mark.timeout(45)
@pytest.mark.parametrize("end", ["complete", "release", "fail", "duplicates"])
@pytest.mark.parametrize("other", range(2))
@pytest.mark.parametrize("sql_store", ["mysql", "postgres"], indirect=True)
def test_a_group_waits_for_no_other_key(sql_store, end, other):
    checker, theirs = sql_store.transactional(), sql_store.transactional()
    held = claimed(theirs, [SPACE.key(f"other-{other}")])
    try:
        mine = claimed(checker, MINE)
        if end == "release":
            assert all(each.owned for each in checker.desk.release_many([(claim, None) for claim in mine]))
        elif end == "fail":
            failures = [(claim, Failure("no", 5)) for claim in mine]
            assert all(each.owned for each in checker.desk.release_many(failures))
        else:
            assert checker.desk.complete_many([Completion(claim) for claim in mine]) == [True] * 3
        if end == "duplicates":
            decisions = checker.desk.claim_many([ClaimRequest(key) for key in MINE])
            assert {decision.verdict for decision in decisions} == {Verdict.DUPLICATE}
    finally:
        theirs.desk.abandon(held[0])
