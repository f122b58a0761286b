"""The claim rule as a table: `judge` is equal to it, each row of it is needed, and its page shows it.

`CellsContract` holds the stores against it.
"""

import math
from itertools import product
from pathlib import Path

from idempotent.checkers.judging import Change, StoredKey, judge
from idempotent.claims import NOBODY, ClaimRequest, KeyStatus, Lapsed, new_owner
from idempotent.keys import KeySpace
from idempotent.testing.checker_contract.rule import RULE, After, State, faults_of, row_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "checkers.md"
KEY = KeySpace("orders", "billing").key("1")
OURS, THEIRS = b"o" * 20, b"t" * 20
OWNER = new_owner()
IN_PROGRESS = [status for status in KeyStatus if status.in_progress]
CHANGES = {After.UNCHANGED: Change.NONE, After.CLAIMED: Change.STORE, After.PARKED: Change.PARK}

STORED = [None] + [
    StoredKey(status, owner, 7, rest_s, fingerprint, b"1", "no", deaths)
    for status, owner, rest_s, fingerprint, deaths in product(
        KeyStatus, (OWNER, new_owner(), NOBODY), (math.inf, 60.0, 0.0, -1.0), (None, OURS), (0, 2)
    )
    if owner != NOBODY or status is KeyStatus.IN_PROGRESS
]
REQUESTS = [
    ClaimRequest(KEY, OWNER, fingerprint, status, on_lapsed)
    for fingerprint, status, on_lapsed in product((None, OURS, THEIRS), IN_PROGRESS, Lapsed)
]


def test_judge_answers_as_the_table_says():
    for stored, request in product(STORED, REQUESTS):
        judgement = judge(stored, request, fence=8)
        assert judgement.change is CHANGES[row_of(stored, request).after], (stored, request)
        assert not faults_of(judgement.decision, stored, request), (stored, request)


def test_each_row_of_the_table_decides_something():
    deciding = {RULE.index(row_of(stored, request)) for stored, request in product(STORED, REQUESTS)}
    assert deciding == set(range(len(RULE)))


def test_its_page_shows_the_table():
    assert "\n".join(shown()) in PAGE.read_text()


def shown():
    yield "| stored key | delivery | verdict | the key afterwards |"
    yield "|---|---|---|---|"
    for row in RULE:
        yield f"| {_stored(row)} | {_delivery(row)} | {_verdict(row)} | {row.after.value} |"


def _stored(row):
    states = " or ".join(state.value for state in State if state in row.states)
    details = {"taken over before": row.taken_over}
    return ", ".join([states, *(name for name, holds in details.items() if holds)])


def _delivery(row):
    details = {"its owner asks again": row.mine, "other content": row.other_content}
    lapsed = [f"`{row.on_lapsed.name}`"] if row.on_lapsed else []
    return ", ".join([*lapsed, *(name for name, holds in details.items() if holds)]) or "any"


def _verdict(row):
    details = {"lapsed": row.lapsed, "held": row.held}
    return ", ".join([f"`{row.verdict.name}`", *(name for name, holds in details.items() if holds)])
